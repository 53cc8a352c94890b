"""Serves the flow agent of this node in a controller of any tier.

Arrives: where to listen; the backplane of this controller.
Leaves: a running agent: its events are published there, and the settings of its flows and applications
come from there.
Must not know: policies, how engines report.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from contextlib import ExitStack
from pathlib import Path

import msgspec

from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import CollectivePlaced, Envelope, FlowAdjusted, IoAdjusted
from waystage.flows.agent import AgentLimits, FlowAgent
from waystage.flows.reporter import SOCKET
from waystage.local_rpc import LocalRpcError

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_.=-]{1,96}")
"""A scope of the backplane, short enough for a flow id."""


class FlowsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`listen`: the socket, `none` for no agent; empty: `flows.sock` beside the first unix socket of the backplane.

    `name` begins the ids of its flows and is the scope of its events; empty: the name of the host, with a digest of the
    socket's path unless that is the default one. Not two agents of a site may have the same.
    """

    listen: str = ""
    name: str = ""
    flows: int = AgentLimits().flows
    flows_per_user: int = AgentLimits().flows_per_user


def socket_of(config: FlowsConfig, backplane: BackplaneConfig) -> Path | None:
    """Where the agent listens; None for no agent."""
    if config.listen == "none":
        return None
    if config.listen:
        return Path(config.listen)
    return next((path.parent / SOCKET.name for path in backplane.listen_sockets), None)


def agent_name(config: FlowsConfig, path: Path) -> str:
    """The agent's name. Raises LocalRpcError for one that cannot be a scope."""
    if config.name:
        if not NAME.fullmatch(config.name):
            raise LocalRpcError(
                f"flows: name {ascii(config.name)[:60]} must be 1 to 96 of A-Z a-z 0-9 _ . = -"
            )
        return config.name
    host = re.sub(r"[^A-Za-z0-9_.=-]", "-", os.uname().nodename)[:80]
    return host if path == SOCKET else f"{host}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"


def serve_flows(
    config: FlowsConfig, backplane: Backplane, stack: ExitStack, *, anywhere: bool
) -> FlowAgent | None:
    """Start the agent; `stack` stops it. An agent by default that cannot be served is left out, and logged.

    Raises LocalRpcError where `config.listen` cannot be served.
    """
    path = socket_of(config, backplane.config)
    if path is None:
        return None
    name = agent_name(config, path)
    limits = AgentLimits(flows=config.flows, flows_per_user=config.flows_per_user)
    agent = FlowAgent(
        name, path, backplane.publish, host=os.uname().nodename, anywhere=anywhere, limits=limits
    )

    def adjusted(item: Envelope) -> None:
        if isinstance(item.event, FlowAdjusted | IoAdjusted | CollectivePlaced):
            agent.adjusted(item.event)

    try:
        agent.start()
    except LocalRpcError as error:
        if config.listen:
            raise
        log.warning("no flow agent: %s", error)
        return None
    stack.callback(agent.stop)
    for kind in (FlowAdjusted, IoAdjusted, CollectivePlaced):
        told = backplane.subscribe(kind, adjusted, scope=name)
        stack.callback(told.close)
    return agent
