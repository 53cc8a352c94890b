"""The lab: an emulated cluster on this machine, in network namespaces.

Arrives: a name and a topology.
Leaves: hosts in which programs can be started, joined by OpenFlow switches over rate-limited links;
and afterwards nothing.
Must not know: policies, experiments, how the controller decides.

Hosts are network namespaces with their own host name and node-local tmpfs; switches are bridges
of a private Open vSwitch in one more namespace, the fabric. Containers were not used: they would bring
a runtime to install and nothing that namespaces do not have.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from waystage.interconnect.graphml import read_topology, write_topology
from waystage.machine import CpuWatch
from waystage.topology import Topology, TopologyError
from waystage.worlds.lab.commands import environment, require, require_root, run, run_together
from waystage.worlds.lab.counters import Reading
from waystage.worlds.lab.counters import read as read_counters
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.errors import LabBusy, LabError
from waystage.worlds.lab.lldp import start_lldp
from waystage.worlds.lab.lock import LabLock, Owner
from waystage.worlds.lab.processes import ProcessId, uninterrupted
from waystage.worlds.lab.resources import FAR_SITE, SLURM_CONTROLLER, Far, LabResources, netns_is_mounted
from waystage.worlds.lab.switches import Switches
from waystage.worlds.lab.wan import paths
from waystage.worlds.lab.wiring import QUIET_IPV6, Wiring

CONTROLLER_LISTEN = "127.0.0.1:6653"
HOST_BYTES = 512 * 1024 * 1024
"""Size limit of each host's node-local storage; memory is used only as it fills."""

_REMOVE_ROUNDS = 3
"""The last command of a killed owner may still be at work; it is short, and the next round finds what it made."""

_PROGRAMS = (
    "ip tc ethtool nsenter unshare mount ovsdb-tool ovsdb-server ovs-vswitchd ovs-vsctl ovs-ofctl lldpd"
)


class Lab:
    """`up()` or `with Lab(...)`; `Lab.attach(name)` for one that is up already.

    With `keep` the lab outlives this process, until `down`.
    """

    def __init__(
        self, name: str, topology: Topology, *, keep: bool = False, host_bytes: int = HOST_BYTES
    ) -> None:
        self.name = name
        self.resources = LabResources(name)
        self.wiring = Wiring.of(topology)
        self.keep = keep
        self.host_bytes = host_bytes
        self.switches = Switches(self.resources.ovs, ())
        self._lock = LabLock(self.resources.lock, name)
        self._children: list[subprocess.Popen[Any]] = []

    @classmethod
    def attach(cls, name: str) -> Lab:
        """A lab that is up, also one of another process. Raises LabError where there is none."""
        resources = LabResources(name)
        owner = Owner.read(resources.owner)
        if owner is None or owner.phase != "up":
            raise LabError(f"lab '{name}' is not up: bring it up with 'waystage lab up --name {name}'")
        if not owner.alive:
            raise LabError(
                f"lab '{name}' was left behind by a process that was killed: 'waystage lab down --name {name}' removes it"
            )
        try:
            topology = read_topology(resources.topology)
        except TopologyError as error:
            raise LabError(f"lab '{name}' is damaged ({error}): take it down and up again") from None
        lab = cls(name, topology, keep=owner.kept)
        lab._enter_fabric()
        return lab

    # -- up and down ------------------------------------------------------------------------

    def up(self) -> None:
        """Bring everything up, or raise and leave nothing.

        Raises NotRoot, MissingProgram, LabBusy (another process holds it, or it is up), LabError.
        """
        require_root("a lab of network namespaces")
        require(*_PROGRAMS.split())
        self._lock.take()
        try:
            owner = Owner.read(self.resources.owner)
            if owner is not None and owner.alive:
                raise LabBusy(
                    f"lab '{self.name}' is up already: take it down with 'waystage lab down --name {self.name}'"
                )
        except BaseException:
            self._lock.release()
            raise
        try:
            _remove(self.resources)
            self._build()
        except BaseException:
            self._take_down()
            raise
        if self.keep:
            self._lock.release()

    def down(self) -> None:
        """Remove the lab and what a killed owner left; harmless where there is nothing.

        Raises LabBusy where another living process owns it: ending that takes its lab down too.
        """
        if self._lock.held:
            self._take_down()
        else:
            take_down(self.name)

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # -- inside ------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """With a mac and an ip for every host."""
        return self.wiring.topology

    @property
    def run_dir(self) -> Path:
        return self.resources.run_dir

    @property
    def controller_listen(self) -> str:
        """Where, inside the fabric namespace, the switches look for their controller."""
        return CONTROLLER_LISTEN

    @property
    def backplane_endpoint(self) -> str:
        """A unix socket, which every namespace can reach."""
        return f"unixsock-stream/{self.run_dir}/backplane.sock"

    @property
    def flow_agent(self) -> Path:
        """The socket of the controller's flow agent, which is there while a controller runs."""
        return self.run_dir / "flows.sock"

    @property
    def flow_socket(self) -> Path:
        """Where engines on any host report to the flow agent of the lab's controller."""
        return self.run_dir / "flows.sock"

    @property
    def topology_file(self) -> Path:
        return self.resources.topology

    def exec(self, host: str, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, in a new session. Keywords are those of `subprocess.Popen`."""
        return self._start(self.resources.enter_host(self._known(host)), argv, popen)

    def fabric_exec(self, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a program beside the switches, as the controller is."""
        return self._start(self.resources.enter_fabric(), argv, popen)

    def host_ip(self, host: str) -> str:
        ip = self.topology.host_by_name[self._known(host)].ip
        assert ip is not None, "the wiring gives every host an address"
        return ip

    def host_dir(self, host: str) -> Path:
        """The host's node-local storage: a tmpfs that is full at `host_bytes`."""
        return self.resources.host_dir(self._known(host))

    def enter(self, host: str) -> tuple[list[str], dict[str, str]]:
        """The words before a command, and the environment, that run it on a host; or, for `fabric`,
        beside the switches, where the tools of Open vSwitch find them; or, for `slurmctl`, beside slurmctld; or, for
        `far`, at the far end of its wide-area path."""
        if host == "fabric":
            return self.resources.enter_fabric(), environment(self.switches.environment)
        slurm = {"SLURM_CONF": str(self.resources.slurm_conf)} if self.resources.slurm_conf.exists() else {}
        variables = slurm | {"WAYSTAGE_FLOWS": str(self.flow_socket)}
        if host == SLURM_CONTROLLER and slurm:
            return self.resources.enter_slurm(), environment(variables)
        far = Far.read(self.resources.far)
        if host == FAR_SITE and far is not None:
            return paths.enter(far.path, "right"), environment({})
        return self.resources.enter_host(self._known(host)), environment(variables)

    def rule_count(self, switch: str) -> int:
        """How many flow entries a switch holds."""
        found = re.search(r"flow_count=(\d+)", self.ofctl("dump-aggregate", switch))
        return int(found[1]) if found else 0

    def ofctl(self, *arguments: str) -> str:
        """`ovs-ofctl COMMAND SWITCH ...`: a switch's name may stand wherever a bridge's does."""
        return self.switches.ofctl(*(self.wiring.bridges.get(a, a) for a in arguments))

    def set_link(self, link_name: str, up: bool) -> None:
        """Pull a cable, or plug it in again: both ends see the carrier go."""
        wire = self.wiring.wire_by_link.get(link_name)
        if wire is None:
            known = ", ".join(self.wiring.wire_by_link)
            raise LabError(f"lab '{self.name}' has no link {ascii(link_name)[:80]}: there are {known}")
        end = next(e for e in wire.ends if not e.is_host)
        run(["ip", "-n", self.resources.fabric, "link", "set", end.device, "up" if up else "down"])

    def links(self) -> Reading:
        """Counters of every link now; two readings give rates. By class they are the controller's to know."""
        return read_counters(self)

    def cpu(self) -> CpuWatch:
        """Between its start and stop (or as a context manager), how idle the machine was."""
        return CpuWatch()

    def check(self) -> None:
        """Raises LabError saying what has died."""
        self.switches.check()
        for daemon in Daemon.read_all(self.resources.daemons):
            if not daemon.process.alive:
                raise LabError(
                    f"{daemon.name} of lab '{self.name}' has stopped: see {daemon.log}, then take the lab down and up"
                )

    def watch(self, name: str, process: subprocess.Popen[Any], log: Path) -> None:
        """Let `check` say so when this process, started in the lab, has died; `down` waits for it."""
        self._children.append(process)
        found = ProcessId.of(process.pid)
        if found is None:
            raise LabError(f"{name} of lab '{self.name}' ended at once: see {log}")
        others = [
            d for d in Daemon.read_all(self.resources.daemons) if d.name != name
        ]  # it may replace a dead one
        Daemon.write_all(self.resources.daemons, [*others, Daemon(name=name, process=found, log=str(log))])

    # -- below -------------------------------------------------------------------------------

    def _known(self, host: str) -> str:
        if host not in self.topology.host_by_name:
            hosts = ", ".join(h.name for h in self.topology.hosts)
            raise LabError(f"lab '{self.name}' has no host {ascii(host)[:80]}: there are {hosts}")
        return host

    def _start(
        self, enter: Sequence[str], argv: Sequence[str], popen: Mapping[str, Any]
    ) -> subprocess.Popen[Any]:
        variables = environment({"WAYSTAGE_FLOWS": str(self.flow_socket)})
        options: dict[str, Any] = {"start_new_session": True, "env": variables, **popen}
        return subprocess.Popen([*enter, *argv], **options)

    def _enter_fabric(self) -> None:
        self.switches = Switches(self.resources.ovs, self.resources.enter_fabric())

    def _build(self) -> None:
        resources = self.resources
        owner = Owner.me(kept=self.keep, unmount_netns=not netns_is_mounted())
        for folder in (resources.run_dir, resources.ovs, resources.lldp, resources.uts, resources.controller):
            folder.mkdir(mode=0o755, parents=True)
        owner.write(resources.owner)
        write_topology(self.topology, resources.topology)
        hosts = [host.name for host in self.topology.hosts]
        namespaces = {host: resources.namespace(host) for host in hosts}
        run(
            ["ip", "-batch", "-"],
            text_in="".join(f"netns add {n}\n" for n in (resources.fabric, *namespaces.values())),
        )
        self._make_host_places(hosts)
        self._enter_fabric()
        run([*resources.enter_fabric(), "sh", "-s"], text_in="set -e\n" + QUIET_IPV6)
        self.switches.start()
        run(["ip", "-n", resources.fabric, "-batch", "-"], text_in=self.wiring.link_batch(namespaces))
        run_together(
            {"the fabric": ([*resources.enter_fabric(), "sh", "-s"], self.wiring.fabric_script())}
            | {h: ([*resources.enter_host(h), "sh", "-s"], self.wiring.host_script(h)) for h in hosts}
        )
        self.switches.build(self.wiring, CONTROLLER_LISTEN)
        for host, daemon in start_lldp(self).items():
            self.watch(f"lldpd on {host}", daemon, resources.lldp / f"{host}.log")
        Owner(
            process=owner.process,
            phase="up",
            kept=owner.kept,
            boot_id=owner.boot_id,
            unmount_netns=owner.unmount_netns,
        ).write(resources.owner)

    def _make_host_places(self, hosts: Sequence[str]) -> None:
        """A host name and a tmpfs for each host."""
        lines = ["set -e"]
        for host in hosts:
            folder, uts = self.resources.host_dir(host), self.resources.uts / host
            folder.mkdir(parents=True)
            uts.touch()
            lines.append(
                f"mount -t tmpfs -o size={self.host_bytes},mode=0755 waystage-{self.name} {shlex.quote(str(folder))}"
            )
            lines.append(f"unshare --uts={shlex.quote(str(uts))} hostname {shlex.quote(host)}")
        run(["sh", "-s"], text_in="\n".join(lines) + "\n")

    def _take_down(self) -> None:
        with uninterrupted():
            try:
                _remove(self.resources)
            finally:
                self._lock.release()
                self._wait_children()

    def _wait_children(self) -> None:
        while self._children:
            self._children.pop().wait()


def take_down(name: str) -> bool:
    """Remove a lab by its name alone, also one of a process that was killed; whether anything was removed.

    Raises NotRoot, LabBusy where a living process owns it, LabError.
    """
    require_root("taking a lab down")
    resources = LabResources(name)
    if not resources.anything_left and not resources.lock.exists():
        return False
    with LabLock(resources.lock, name), uninterrupted():
        return _remove(resources)


def _remove(resources: LabResources) -> bool:
    if not resources.anything_left:
        return False
    owner = Owner.read(resources.owner)
    unmount = owner is not None and owner.unmount_netns
    far = Far.read(resources.far)
    if far is not None:
        # What has mounts of it comes to its end when they are unmounted, below.
        paths.down(far.path)
    if (resources.slurm / "global-data").exists():
        _end_emulated(resources)
    for _ in range(_REMOVE_ROUNDS):
        resources.remove_all(unmount_netns=unmount)
        if not resources.anything_left:
            break
    return True


def _end_emulated(resources: LabResources) -> None:
    """End the emulated file systems mounted in the lab's folder, whose processes are in none of its namespaces."""
    from waystage.worlds.lab.pfs import mounts  # numpy: only where there may be one

    for made in mounts.mounted():
        if Path(made.point).is_relative_to(resources.run_dir):
            with contextlib.suppress(LabError):  # what is left of it is unmounted with the rest
                mounts.unmount(Path(made.point), force=True)
