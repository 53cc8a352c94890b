"""What the lab's links carried and dropped, read from the kernel.

Arrives: a wiring and the namespaces it became.
Leaves: counters of both directions of every link; rates between two readings.
Must not know: classes of traffic; who sends.

Two kinds of loss are distinguished: a full queue (the shaper's, as in a switch: part of the experiment),
and packets that the switch program did not pick up in time (the machine was short of CPU: not part of it).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from waystage.worlds.lab.commands import run
from waystage.worlds.lab.wiring import HOST_DEVICE, End

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

# A line of `ss --packet --memory`: "p_raw 0 0 *:s1p2 * skmem:(r0,...,d17)", with or without a line break.
_SOCKET = re.compile(r"\*:(s\d+p\d+)\s.*?skmem:\([^)]*\bd(\d+)\)", re.DOTALL)


class Direction(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the lab came up of what `node` sent into the link through `port`."""

    node: str
    port: int
    peer: str
    bytes: int
    packets: int
    queue_drops: int
    """Dropped at the sending end, whose queue was full."""
    cpu_drops: int
    """Lost at the receiving switch, which did not read in time."""


class LinkCounters(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    capacity_bps: int
    up: bool
    directions: tuple[Direction, Direction]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All links at one moment; `time_ns` is monotonic."""

    time_ns: int
    links: tuple[LinkCounters, ...]

    @property
    def queue_drops(self) -> int:
        return sum(d.queue_drops for link in self.links for d in link.directions)

    @property
    def cpu_drops(self) -> int:
        return sum(d.cpu_drops for link in self.links for d in link.directions)

    def rates(self, earlier: Reading) -> dict[tuple[str, int], float]:
        """(node, port) -> bit/s that left there since the earlier reading."""
        seconds = max((self.time_ns - earlier.time_ns) / 1e9, 1e-9)
        before = {(d.node, d.port): d.bytes for link in earlier.links for d in link.directions}
        return {
            (d.node, d.port): max(d.bytes - before.get((d.node, d.port), 0), 0) * 8 / seconds
            for link in self.links
            for d in link.directions
        }


def read(lab: Lab) -> Reading:
    """Raises LabError where the fabric is gone."""
    fabric = lab.resources.fabric
    devices = {d["ifname"]: d for d in _json(["ip", "-n", fabric, "-s", "-j", "link", "show"])}
    dropped = _queue_drops(fabric)
    unread = {
        name: int(count)
        for name, count in _SOCKET.findall(run([*lab.resources.enter_fabric(), "ss", "--packet", "--memory"]))
    }
    for host in lab.topology.hosts:
        dropped[host.name] = _queue_drops(lab.resources.namespace(host.name)).get(HOST_DEVICE, 0)

    def sent(end: End, far: End) -> Direction:
        # A host's device is in another namespace: what it sent is what the switch's end received.
        stats = devices.get(far.device if end.is_host else end.device, {}).get("stats64", {})
        counted = stats.get("rx" if end.is_host else "tx", {})
        return Direction(
            node=end.node,
            port=end.port,
            peer=far.node,
            bytes=counted.get("bytes", 0),
            packets=counted.get("packets", 0),
            queue_drops=dropped.get(end.node if end.is_host else end.device, 0),
            cpu_drops=unread.get(far.device, 0),
        )

    def up(ends: Iterable[End]) -> bool:
        return all(devices.get(e.device, {}).get("operstate") == "UP" for e in ends if not e.is_host)

    return Reading(
        time_ns=time.monotonic_ns(),
        links=tuple(
            LinkCounters(
                name=wire.link.name,
                capacity_bps=wire.link.capacity_bps,
                up=up(wire.ends),
                directions=(sent(wire.a, wire.b), sent(wire.b, wire.a)),
            )
            for wire in lab.wiring.wires
        ),
    )


def _queue_drops(namespace: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for qdisc in _json(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"]):
        if qdisc.get("root"):
            found[qdisc["dev"]] = int(qdisc.get("drops", 0))
    return found


def _json(argv: list[str]) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(run(argv) or "[]")
    return parsed
