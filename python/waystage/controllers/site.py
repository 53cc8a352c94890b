"""Builds a controller process from its configuration.

Arrives: a configuration: tier, endpoints, topology, policy, certificates.
Leaves: a running controller with its actuators, and the function that stops it.
Must not know: command lines, signals.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError
from waystage.controllers.collective_placements import CollectivePlacements
from waystage.controllers.demand_meter import DemandMeter
from waystage.controllers.flow_actuator import FlowActuator
from waystage.controllers.flow_service import FlowsConfig, serve_flows
from waystage.controllers.global_controller import GlobalController
from waystage.controllers.guard import GuardConfig, GuardedPolicy, build
from waystage.controllers.io_actuator import IoActuator
from waystage.controllers.job_keeper import JobKeeper
from waystage.controllers.journal import Sync
from waystage.controllers.relay import RelayConfig, RelayController
from waystage.controllers.site_facts import (
    FactError,
    FileSystemConfig,
    WidePathConfig,
    declared,
    withdrawn,
)
from waystage.flows.agent import FlowAgent
from waystage.interconnect.openflow_access import Access, Tls, check_listening
from waystage.jobs.database import JobDatabase
from waystage.local_rpc import LocalRpcError
from waystage.policies.base import SHIPPED, PolicyError

log = logging.getLogger(__name__)

Tier = Literal["global", "application", "node"]

KNOWN_S = 5.0
"""How long a start waits until the state has the topology and the facts of the configuration."""


class OpenFlowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where switches are awaited, and who may be one; see `Access`.

    `part_s`: counters are read this often, and `LinkUse`, which comes once a second, holds the parts; 0 for no parts.
    """

    listen: str = "127.0.0.1:6653"
    tls: Tls | None = None
    allow: tuple[str, ...] = ()
    part_s: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class SiteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`backplane` is the side of those below; `above`, the side of the tier above, which `global` has not.

    `openflow` says where switches are awaited, a text alone is HOST:PORT; without it nothing carries
    `AssignPaths` out. `flows` says where engines report what they move. `file_systems` and `wide_paths` are for policies.
    """

    tier: Tier = "global"
    backplane: BackplaneConfig = BackplaneConfig()
    above: BackplaneConfig | None = None
    relay: RelayConfig = RelayConfig()
    topology: str | None = None
    policy: str = "null"
    policy_options: dict[str, Any] = {}
    policy_guard: GuardConfig = GuardConfig()
    openflow: OpenFlowConfig | str | None = None
    flows: FlowsConfig = FlowsConfig()
    file_systems: tuple[FileSystemConfig, ...] = ()
    wide_paths: tuple[WidePathConfig, ...] = ()
    state_dir: str = ""
    sync: Sync = "full"

    @property
    def switches(self) -> OpenFlowConfig | None:
        """`openflow` in full."""
        return OpenFlowConfig(listen=self.openflow) if isinstance(self.openflow, str) else self.openflow


class SiteError(ValueError):
    """An invalid configuration; the message names the option and the fix."""


class Site:
    """A controller that runs. Close it to drain and stop."""

    def __init__(
        self, config: SiteConfig, closing: contextlib.ExitStack, name: str, flows: FlowAgent | None
    ) -> None:
        self.config, self.name, self.flows = config, name, flows
        self._closing = closing

    def describe(self) -> dict[str, Any]:
        """What the ready line says."""
        return {
            "ready": True,
            "tier": self.config.tier,
            "source": self.name,
            "listen": list(self.config.backplane.listen),
            "connect": list(self.config.above.connect) if self.config.above else [],
            "policy": self.config.policy if self.config.tier == "global" else None,
            "openflow": self.config.switches.listen if self.config.switches else None,
            "flows": str(self.flows.path) if self.flows else None,
            "pid": os.getpid(),
        }

    def close(self) -> None:
        self._closing.close()


def start(config: SiteConfig) -> Site:
    """Raises SiteError, BackplaneError, JournalError, DatabaseError, PolicyError, TopologyError or OpenFlowError."""
    if config.tier == "global":
        if config.above is not None:
            raise SiteError("the global controller is the highest tier: it listens and does not connect")
        return _start_global(config)
    if config.above is None or not config.above.connect:
        raise SiteError(f"a controller of tier {config.tier} needs --connect: where the tier above listens")
    if config.openflow is not None:
        raise SiteError(
            f"switches belong to the global controller: leave --openflow off for tier {config.tier}"
        )
    if config.file_systems or config.wide_paths:
        raise SiteError(
            f"file_systems and wide_paths belong to the global controller: leave them out for tier {config.tier}"
        )
    with contextlib.ExitStack() as stack:
        backplane = stack.enter_context(Backplane.open(config.backplane))
        relay = RelayController(backplane, config.above, Path(config.state_dir), config.relay)
        relay.start()
        stack.callback(relay.stop)
        agent = _serve_flows(config, backplane, stack)
        return Site(config, stack.pop_all(), backplane.source, agent)


def _start_global(config: SiteConfig) -> Site:
    from waystage.interconnect.graphml import read_topology

    try:
        facts = declared(config.file_systems, config.wide_paths)
    except FactError as error:
        raise SiteError(str(error)) from None
    topology = read_topology(config.topology) if config.topology is not None else None
    address, access = None, Access()
    if config.switches is not None:
        address = parse_address(config.switches.listen)
        access = Access(tls=config.switches.tls, allow=config.switches.allow)
        check_listening(*address, access)  # before anything is opened
    with contextlib.ExitStack() as stack:
        policy = build(config.policy, config.policy_options, config.policy_guard)
        if isinstance(policy, GuardedPolicy):
            stack.callback(policy.close)
        backplane = stack.enter_context(Backplane.open(config.backplane))
        folder = Path(config.state_dir)
        controller = GlobalController(policy, [], backplane, folder, sync=config.sync)
        flows = FlowActuator(controller.publish)
        io = IoActuator(controller.publish)
        controller.actuators += [flows, io]
        placements = CollectivePlacements(controller.publish)
        controller.observers += [flows, io, placements, DemandMeter(controller.publish)]
        jobs = stack.enter_context(JobDatabase(folder / "jobs.db", controller.known_events))
        keeper = JobKeeper(backplane, jobs, controller.known_events, folder)
        stack.callback(keeper.close)
        stack.callback(controller.stop)
        gone = tuple(withdrawn(facts, controller.restored)) if facts else ()
        if address is not None:
            from waystage.interconnect.controller import InterconnectController
            from waystage.interconnect.watch import Options

            actuator = InterconnectController(
                controller.publish,
                address,
                topology,
                plan=controller.requested,
                options=Options(part_s=config.switches.part_s if config.switches else 0.0),
                access=access,
            )
            controller.actuators.append(actuator)
            controller.start()  # before the switches: what they report must find the journal open
            actuator.start()
            stack.callback(actuator.stop)
        else:
            controller.start()
            if topology is not None:
                controller.publish_topology(topology)
        for event in (*gone, *facts):
            controller.publish(event)
        if not backplane.confirm_published(timeout=KNOWN_S):
            log.warning(
                "the controller's own facts are not journalled after %g s: is the disk slow?", KNOWN_S
            )
        agent = _serve_flows(config, backplane, stack)
        return Site(config, stack.pop_all(), backplane.source, agent)


def _serve_flows(config: SiteConfig, backplane: Backplane, stack: contextlib.ExitStack) -> FlowAgent | None:
    try:
        return serve_flows(config.flows, backplane, stack, anywhere=config.tier == "global")
    except LocalRpcError as error:
        raise SiteError(f"flows: {error}") from None


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT. Raises SiteError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SiteError(f"--openflow {text!r} is not HOST:PORT, for example 127.0.0.1:6653")
    return host.strip("[]"), int(port)


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """`NAME[:key=value,...]` or `module:Class[:key=value,...]`; values are JSON where they can be."""
    name, _, rest = text.partition(":")
    if name not in SHIPPED and rest:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise PolicyError(f"policy option {pair!r} of {name} is not key=value")
        try:
            options[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            options[key] = value
    return name, options


def site_from(values: dict[str, Any], where: str) -> SiteConfig:
    """Build a configuration from plain values. Raises BackplaneError naming the key."""
    try:
        return msgspec.convert(values, SiteConfig, strict=True)
    except msgspec.ValidationError as error:
        raise BackplaneError(f"{where}: {error}") from None


def default_state_dir() -> str:
    """/var/lib/waystage for root, else the user's own state folder."""
    if os.geteuid() == 0:
        return "/var/lib/waystage"
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(base) / "waystage")
