"""Resources beside links: storage targets and wide-area paths, and the flows that use them.

Arrives: an experiment's file systems, paths and copies; what a job stages or reads.
Leaves: `Flow`s, of legs between hosts and over these resources; the same facts as events.
Must not know: plans, shares, time.

A leg is the part of a flow with one target. Its bytes cross the interconnect between the target's host and the node,
and share the target with other loaders by its contention curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from waystage.events import (
    Control,
    Direction,
    Event,
    FileSystemDeclared,
    FlowEndpoint,
    TrafficClass,
    WidePathDeclared,
)
from waystage.experiment.schema import CollectiveIo, Experiment, FileSystem, Striped, WideCopy
from waystage.forecast.curves import table
from waystage.topology import Topology
from waystage.worlds.windows import in_flight

OBEYED: dict[TrafficClass, tuple[Control, ...]] = {
    "staging": ("rate", "loaders", "pause"),
    "wan": ("rate", "mode", "loaders", "pause"),
}
"""What engines obey, by class. I/O of a program has no engine, and obeys nothing."""


class Leg(msgspec.Struct, frozen=True):
    """A share of a flow's bytes, from host to host, over `resources` beside links; equal hosts use no link."""

    source: str
    target: str
    share: float
    resources: tuple[str, ...] = ()


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """A movement with an identity: reported while it runs, and open to actions. Bytes are payload.

    Each leg moves its share with `loaders` streams at once, each object by object of `object_bytes` (0: no objects). The
    objects in service of all legs are at most `memory_bytes` (0: no limit), but at least one for each leg.
    With `piece_bytes` the bytes go piece by piece; a pause of `pause_s` precedes each piece. `weight` is that of each
    stream in max-min shares. `leg_ended` is called with the index of each leg at its end.
    """

    flow_id: str
    traffic: TrafficClass
    engine: str
    bytes: int
    legs: tuple[Leg, ...]
    source: FlowEndpoint
    destination: FlowEndpoint
    job_id: str | None = None
    loaders: int = 1
    object_bytes: int = 0
    memory_bytes: int = 0
    mode: str | None = None
    pause_s: float = 0.0
    piece_bytes: int = 0
    weight: float = 1.0
    leg_ended: Callable[[int], None] | None = None

    @property
    def controls(self) -> tuple[Control, ...]:
        return OBEYED.get(self.traffic, ())


class Resources:
    """`capacities` maps each resource to bytes a second, or to points (loaders, bytes a second)."""

    def __init__(self, experiment: Experiment, topology: Topology) -> None:
        self._systems = {system.name: system for system in experiment.file_systems}
        self._storage = topology.storage_hosts
        self._paths = {path.name: path for path in experiment.wide_paths}
        self._near = {name: path.host or self._storage[0] for name, path in self._paths.items()}
        self.capacities: dict[str, float | list[tuple[float, float]]] = {}
        for system in experiment.file_systems:
            curve = table(system.slowdown, float(system.bytes_per_s))
            self.capacities |= {f"{system.name}:{number}": curve for number in range(system.targets)}
        for path in experiment.wide_paths:
            self.capacities |= {f"{path.name} {way}": float(path.bytes_per_s) for way in ("in", "out")}

    def facts(self) -> Iterator[Event]:
        """What a site would declare of them."""
        for system in self._systems.values():
            yield FileSystemDeclared(
                file_system=system.name,
                targets=system.targets,
                target_bps=system.bytes_per_s * 8,
                slowdown=system.slowdown,
                hosts=self._hosts(system),
            )
        for path in self._paths.values():
            yield WidePathDeclared(
                peer=path.name, host=self._near[path.name], rate_bps=path.bytes_per_s * 8, rtt_s=path.rtt_s
            )

    def between(
        self, what: Striped, number: int, host: str, direction: Direction, storage: str | None
    ) -> tuple[tuple[Leg, ...], FlowEndpoint]:
        """Legs between a file system and `host`, and the file system's end; its first target is that of `number`.

        Without a file system: one leg to the host `storage`.
        """
        if what.file_system is None:
            assert storage is not None
            return (_leg(storage, host, 1.0, direction, ()),), FlowEndpoint(host=storage)
        system = self._systems[what.file_system]
        hosts = self._hosts(system)
        count = system.targets if what.stripes == "all" else what.stripes
        targets = [(number * count + stripe) % system.targets for stripe in range(count)]
        names = tuple(f"{system.name}:{target}" for target in targets)
        legs = tuple(
            _leg(hosts[target % len(hosts)], host, 1 / count, direction, (name,))
            for target, name in zip(targets, names, strict=True)
        )
        return legs, FlowEndpoint(host=hosts[targets[0] % len(hosts)], targets=names)

    def operation(
        self, what: CollectiveIo, app: str, nodes: Sequence[str], servers: Sequence[str]
    ) -> tuple[Leg, ...]:
        """Legs of one collective write: the shuffle from every node to every aggregator, and each
        aggregator's write to every target. Both go on at once, as with double buffering; file domains are equal.

        A target sees each request of an aggregator that is in flight, so there is a leg for each. Shares are of the
        operation's bytes: those of the writes make 1, as do those of the shuffle.
        """
        system = self._systems[what.file_system]
        hosts = self._hosts(system)
        count = system.targets if what.stripes == "all" else what.stripes
        each = max(1, round(in_flight(what.bytes // len(servers), what.buffer) / count))
        writes = [
            Leg(
                host,
                hosts[target % len(hosts)],
                1 / (len(servers) * count * each),
                (f"{what.file_system}:{target}", aggregator_resource(app, nodes.index(host))),
            )
            for host in servers
            for target in range(count)
            for _ in range(each)
        ]
        shuffle = [
            Leg(node, host, 1 / (len(servers) * len(nodes)), ())
            for host in servers
            for node in nodes
            if node != host
        ]
        return (*writes, *shuffle)

    def copy(self, copy: WideCopy, number: int, flow_id: str) -> Flow:
        """The flow of a wide-area copy. It begins after two round trips of handshake."""
        path, near = self._paths[copy.path], self._near[copy.path]
        way = f"{path.name} {copy.direction}"
        leaves: Direction = "out" if copy.direction == "in" else "in"
        legs, here = (
            ((Leg(near, near, 1.0),), FlowEndpoint(host=near))
            if copy.file_system is None
            else self.between(copy, number, near, leaves, None)
        )
        far = FlowEndpoint(peer=path.name)
        return Flow(
            flow_id=flow_id,
            traffic="wan",
            engine="copy",
            bytes=copy.bytes,
            legs=tuple(msgspec.structs.replace(leg, resources=(*leg.resources, way)) for leg in legs),
            source=far if copy.direction == "in" else here,
            destination=here if copy.direction == "in" else far,
            loaders=copy.loaders,
            object_bytes=copy.object_bytes or 0,
            memory_bytes=copy.memory or 0,
            mode=copy.mode,
            pause_s=2 * path.rtt_s,
        )

    def _hosts(self, system: FileSystem) -> tuple[str, ...]:
        return system.hosts or tuple(self._storage)


def aggregator_resource(app: str, number: int) -> str:
    """The name of the speed of an application's aggregator on its node `number` among the resources."""
    return f"{app} on {number}"


def _leg(storage: str, host: str, share: float, direction: Direction, resources: tuple[str, ...]) -> Leg:
    ends = (storage, host) if direction == "in" else (host, storage)
    return Leg(*ends, share, resources)
