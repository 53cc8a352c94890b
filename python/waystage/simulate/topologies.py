"""The topologies of a sweep: from files, or generated.

Arrives: a kind with parameters, and the folder of the sweep's file.
Leaves: a `Cluster`.
Must not know: what is simulated on it.

Generated kinds are those of the compiled module. `capacity` and `host_capacity` are in Mbit/s, as in GraphML files; `slots`
processes run on each host at once; the last host of each of the last `storage` edge switches is a storage host.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from waystage._native import FlowError, Network
from waystage.experiment.documents import nearest
from waystage.experiment.problems import Problem
from waystage.experiment.schema import TopologyChoice
from waystage.interconnect.graphml import MAX_CAPACITY_MBPS, MAX_SLOTS, read_topology, shipped_topologies
from waystage.interconnect.graphml_parser import parse
from waystage.simulate.cluster import BITS_PER_BYTE, Cluster, from_topology
from waystage.topology import TopologyError, parse_megabits

DEFAULT_MBPS = 10_000
"""What links carry where nothing is said. Load mode does not look at it."""

BITS_PER_MEGABIT = 1_000_000

_COMMON = frozenset({"slots", "capacity", "host_capacity", "storage"})


def build(choice: TopologyChoice, folder: Path) -> Cluster:
    """Raises Problem with the key below the choice's own."""
    if choice.kind == "file":
        return _file(choice.params, folder)
    if choice.kind not in _SHAPES:
        raise Problem(
            ("kind",), f"unknown topology {choice.kind!r}: {nearest(choice.kind, ['file', *_SHAPES])}"
        )
    params = _Params(choice.kind, choice.params)
    make, names, optional = _SHAPES[choice.kind]
    params.check(names, optional)
    capacity = params.megabits("capacity", DEFAULT_MBPS)
    at_hosts = params.megabits("host_capacity", capacity)
    bytes_per_megabit = BITS_PER_MEGABIT / BITS_PER_BYTE
    try:
        network = make(params, at_hosts * bytes_per_megabit, capacity * bytes_per_megabit)
    except (FlowError, OverflowError) as error:
        raise Problem(("params",), str(error)) from None
    return _cluster(choice, params, network)


class _Params:
    """The parameters of a kind, each asked for by name and type."""

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        self._kind = kind
        self._values = values

    def check(self, names: frozenset[str], optional: frozenset[str]) -> None:
        for key in self._values:
            if key not in names | optional | _COMMON:
                known = ", ".join(sorted(names | _COMMON))
                raise Problem(("params", key), f"unknown parameter of {self._kind}: use {known}")
        for key in sorted(names):
            if key not in self._values:
                raise Problem(("params",), f"{key} is missing: {self._kind} takes {', '.join(sorted(names))}")

    def whole(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_SLOTS) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Problem(("params", key), f"{value!r} is not a whole number from {low} to {high}")
        return value

    def wholes(self, key: str) -> list[int]:
        value = self._values[key]
        good = isinstance(value, list) and all(type(v) is int and 1 <= v <= MAX_SLOTS for v in value)
        if not good or not value:
            raise Problem(("params", key), f"{value!r} is not a list of whole numbers above zero")
        return list(value)

    def megabits(self, key: str, default: float) -> float:
        value = self._values.get(key, default)
        try:
            number = parse_megabits(value)
        except ValueError:
            number = math.nan
        if not 0 < number <= MAX_CAPACITY_MBPS:
            raise Problem(
                ("params", key),
                f"{value!r} is no capacity: give a number above zero, in Mbit/s, or with a unit such as 100 Gbit/s",
            )
        return number


def _xgft(params: _Params, at_hosts: float, between: float) -> Network:
    m, w = params.wholes("m"), params.wholes("w")
    return Network.xgft(m, w, at_hosts, between)


def _fat_tree(params: _Params, at_hosts: float, between: float) -> Network:
    return Network.fat_tree(params.whole("k"), at_hosts, between)


def _dragonfly(params: _Params, at_hosts: float, between: float) -> Network:
    return Network.dragonfly(params.whole("a"), params.whole("h"), params.whole("p"), at_hosts, between)


def _torus(params: _Params, at_hosts: float, between: float) -> Network:
    dims = params.wholes("dims")
    return Network.torus(dims, params.whole("hosts", 1), at_hosts, between)


_Make = Callable[[_Params, float, float], Network]

_SHAPES: dict[str, tuple[_Make, frozenset[str], frozenset[str]]] = {
    "xgft": (_xgft, frozenset({"m", "w"}), frozenset()),
    "fat-tree": (_fat_tree, frozenset({"k"}), frozenset()),
    "dragonfly": (_dragonfly, frozenset({"a", "h", "p"}), frozenset()),
    "torus": (_torus, frozenset({"dims"}), frozenset({"hosts"})),
}
"""Kind -> how it is made, what it takes, what it may be given."""


def _cluster(choice: TopologyChoice, params: _Params, network: Network) -> Cluster:
    names = network.names
    hosts = network.host_count
    slots = params.whole("slots", 1)
    cluster = Cluster(
        name=choice.label or choice.kind,
        hosts=tuple(names[:hosts]),
        switches=tuple(names[hosts:]),
        slots=(slots,) * hosts,
        storage=(),
        links_from=network.links_from.astype(np.uint32),
        links_to=network.links_to.astype(np.uint32),
        capacity=network.capacity.astype(np.float64),
    )
    last = {edge: host for host, edge in enumerate(cluster.edge_of)}
    count = params.whole("storage", 0, low=0)
    if count > len(last) or count >= hosts:
        raise Problem(("params", "storage"), f"{count} storage hosts do not fit on {len(last)} edge switches")
    storage = tuple(sorted(sorted(last.values())[len(last) - count :]))
    return dataclasses.replace(cluster, storage=storage, _distances={})


def _file(params: Mapping[str, Any], folder: Path) -> Cluster:
    name = params.get("path")
    if not isinstance(name, str) or set(params) != {"path"}:
        raise Problem(
            ("params",), "a topology from a file takes path, the path of a GraphML file, and nothing else"
        )
    if name in shipped_topologies():
        return from_topology(read_topology(name))
    path = folder / name
    if not path.exists():
        raise Problem(
            ("params", "path"),
            f"there is no file {name} (looked for {path}): give the path of a GraphML file, "
            f"or one of {', '.join(shipped_topologies())}",
        )
    try:
        topology = read_topology(path)
    except TopologyError as error:
        raise Problem(("params", "path"), str(error)) from None
    return from_topology(topology, [node.id for node in parse(path.read_bytes()).nodes])
