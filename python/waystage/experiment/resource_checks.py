"""What makes file systems, wide-area paths and the copies over them impossible although they are well formed.

Arrives: an `Experiment` and its `Topology`.
Leaves: nothing, or a `Problem` at the first key that cannot be.
Must not know: YAML, line numbers, any world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from waystage.experiment.documents import nearest
from waystage.experiment.problems import Key, Problem
from waystage.experiment.schema import CollectiveIo, Experiment, FileSystem, Striped
from waystage.topology import Topology


def check_resources(experiment: Experiment, topology: Topology) -> None:
    """Raises Problem."""
    systems = {system.name: system for system in experiment.file_systems}
    for i, system in enumerate(experiment.file_systems):
        slowdown_curve(("file_systems", i, "slowdown"), system.slowdown)
        for j, host in enumerate(system.hosts):
            _host(("file_systems", i, "hosts", j), host, topology)
    paths = [path.name for path in experiment.wide_paths]
    for i, path in enumerate(experiment.wide_paths):
        if path.host:
            _host(("wide_paths", i, "host"), path.host, topology)
    unnamed = any(not s.hosts for s in experiment.file_systems) or any(
        not p.host for p in experiment.wide_paths
    )
    if unnamed and not topology.storage_hosts:
        raise Problem(
            ("topology",),
            f"{topology.name} has no storage node: give a host the role storage, or name hosts",
        )
    for key, names in (
        ("file_systems", list(systems)),
        ("wide_paths", paths),
        ("copies", [copy.name for copy in experiment.copies]),
    ):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise Problem((key, i, "name"), f"{name} is there twice: give each its own name")
    for i, copy in enumerate(experiment.copies):
        if copy.path not in paths:
            known = nearest(copy.path, paths) if paths else "list it under wide_paths"
            raise Problem(("copies", i, "path"), f"there is no wide-area path {copy.path!r}: {known}")
    for key_of, striped in _striped(experiment):
        _check_striped(key_of, striped, systems)
    jobs = experiment.jobs
    sizes = [mix.nodes or jobs.nodes for mix in jobs.mixes] or [jobs.nodes]
    if jobs.collective is not None:
        inherits = [n for n, mix in zip(sizes, jobs.mixes, strict=False) if mix.collective is None] or sizes
        _check_collective(("jobs", "collective"), jobs.collective, systems, min(inherits))
    for i, mix in enumerate(jobs.mixes):
        if mix.collective is not None:
            _check_collective(("jobs", "mixes", i, "collective"), mix.collective, systems, sizes[i])


def slowdown_curve(key: Key, points: Sequence[tuple[float, float]]) -> None:
    """Points (readers of a target, slowdown). Raises Problem."""
    for i, (readers, slowdown) in enumerate(points):
        if slowdown < 1:
            raise Problem((*key, i), f"a slowdown of {slowdown:g} is none: give 1 or more")
        if i and readers <= points[i - 1][0]:
            raise Problem((*key, i), "readers must rise from point to point")


def _striped(experiment: Experiment) -> Iterator[tuple[Key, Striped]]:
    """Everything that may name a file system, with its key."""
    jobs = experiment.jobs
    for name in ("stage_in", "stage_out", "io"):
        for key, part in ((("jobs",), jobs), *((("jobs", "mixes", i), m) for i, m in enumerate(jobs.mixes))):
            what: Any = getattr(part, name)
            if what is not None:
                yield (*key, name), what
    for i, copy in enumerate(experiment.copies):
        yield ("copies", i), copy


def _check_striped(key: Key, what: Striped, systems: dict[str, FileSystem]) -> None:
    if what.memory is not None and what.object_bytes is None:
        raise Problem((*key, "memory"), "needs object_bytes, what a loader holds at once: give it too")
    if what.file_system is None:
        return
    system = systems.get(what.file_system)
    if system is None:
        known = nearest(what.file_system, list(systems)) if systems else "list it under file_systems"
        raise Problem((*key, "file_system"), f"there is no file system {what.file_system!r}: {known}")
    if what.stripes != "all" and what.stripes > system.targets:
        raise Problem(
            (*key, "stripes"),
            f"{what.stripes} stripes; {system.name} has {system.targets} targets: give at most that, or all",
        )


def _check_collective(key: Key, what: CollectiveIo, systems: dict[str, FileSystem], nodes: int) -> None:
    striped = Striped(file_system=what.file_system, stripes=what.stripes)
    _check_striped(key, striped, systems)
    if what.aggregators != "all" and what.aggregators > nodes:
        raise Problem(
            (*key, "aggregators"),
            f"{what.aggregators} aggregators on {nodes} nodes: give at most that, or all",
        )
    count = nodes if what.aggregators == "all" else what.aggregators
    for i, slow in enumerate(what.slow):
        if slow.aggregator >= count:
            raise Problem(
                (*key, "slow", i, "aggregator"),
                f"there is no aggregator {slow.aggregator}: they are 0 to {count - 1}",
            )
        if slow.end is not None and slow.end <= slow.start:
            raise Problem((*key, "slow", i, "end"), "is not after start: give a later operation, or none")
    if count == sum(1 for slow in what.slow if slow.lost):
        raise Problem((*key, "slow"), "all aggregators are lost: let one live")


def _host(key: Key, name: str, topology: Topology) -> None:
    if name not in topology.host_by_name:
        hint = nearest(name, list(topology.host_by_name))
        raise Problem(key, f"there is no node {name!r} in {topology.name}: {hint}")
