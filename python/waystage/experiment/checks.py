"""What makes an experiment impossible although it is well formed.

Arrives: an `Experiment` as written, and the folder of its file.
Leaves: the `Experiment` with paths made absolute, and its `Topology`.
Must not know: YAML, line numbers, any world.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from waystage.experiment.distributions import sampler
from waystage.experiment.documents import nearest
from waystage.experiment.problems import Key, Problem
from waystage.experiment.programs import PROGRAMS
from waystage.experiment.resource_checks import check_resources, slowdown_curve
from waystage.experiment.schema import Compute, ContentionStudy, Experiment, PolicyChoice
from waystage.interconnect.graphml import read_topology, shipped_topologies
from waystage.policies.base import Policy, PolicyError, load_policy, policy_factory
from waystage.topology import Topology, TopologyError

MAX_LOADERS = 1 << 20
"""A million loaders: more than any machine has cores."""

T = TypeVar("T")


def check(experiment: Experiment, folder: Path) -> tuple[Experiment, Topology]:
    """Raises Problem at the first key that cannot be."""
    topology, name = _topology(experiment.topology, folder)
    _policies(experiment)
    _nodes(experiment, topology)
    under(("jobs", "arrivals"), sampler, experiment.jobs.arrivals)
    jobs = msgspec.structs.replace(
        experiment.jobs,
        compute=_compute(experiment.jobs.compute, folder, ("jobs", "compute")),
        mixes=tuple(
            msgspec.structs.replace(
                mix,
                compute=mix.compute and _compute(mix.compute, folder, ("jobs", "mixes", i, "compute")),
            )
            for i, mix in enumerate(experiment.jobs.mixes)
        ),
    )
    _mixes(experiment)
    check_resources(experiment, topology)
    return msgspec.structs.replace(experiment, topology=name, jobs=jobs), topology


def build_policy(choice: PolicyChoice, experiment: Experiment, set_index: int) -> Policy:
    """The policy of `choice` for one set. Raises PolicyError."""
    return load_policy(choice.name, **policy_options(choice, experiment, set_index))


def policy_options(choice: PolicyChoice, experiment: Experiment, set_index: int) -> dict[str, Any]:
    """What the file says, plus rule style and hash seed where the policy takes them.

    With `hash_seed: per-set` the hash of host pairs differs from set to set and is the same for every policy
    in a set, so that a comparison depends on no lucky hash.
    """
    seed = experiment.hash_seed
    offered: dict[str, Any] = {
        "style": choice.rules or experiment.rules,
        "seed": experiment.seed * 1000 + set_index if seed == "per-set" else seed,
    }
    taken = inspect.signature(policy_factory(choice.name)).parameters
    return {k: v for k, v in offered.items() if k in taken} | dict(choice.options)


def _topology(name: str, folder: Path) -> tuple[Topology, str]:
    source: str | Path = name
    if name not in shipped_topologies():
        if "/" not in name and not name.endswith(".graphml"):
            hint = nearest(name, list(shipped_topologies()))
            raise Problem(
                ("topology",), f"unknown topology {name!r}: {hint}, or give the path of a GraphML file"
            )
        source = (folder / name).resolve()
    try:
        return read_topology(source), str(source)
    except TopologyError as error:
        raise Problem(("topology",), str(error)) from None


def _policies(experiment: Experiment) -> None:
    if not experiment.policies:
        raise Problem(("policies",), "no policy is given: name at least one, such as ecmp")
    seen: set[str] = set()
    for index, choice in enumerate(experiment.policies):
        try:
            build_policy(choice, experiment, 0)
        except PolicyError as error:
            raise Problem(("policies", index), str(error)) from None
        if choice.shown in seen:
            raise Problem(("policies", index), f"{choice.shown} is there twice: give one of them a label")
        seen.add(choice.shown)


def _nodes(experiment: Experiment, topology: Topology) -> None:
    jobs, hosts = experiment.jobs, topology.host_by_name
    compute = topology.compute_hosts
    for key, count in _sizes(experiment):
        if count > len(compute):
            raise Problem(key, f"{count} nodes a job; {topology.name} has {len(compute)} computing nodes")
    if isinstance(jobs.placement, tuple):
        if not jobs.placement:
            raise Problem(
                ("jobs", "placement"), "the list of placements is empty: give one list of nodes at least"
            )
        for key, count in _sizes(experiment):
            if count != jobs.nodes:
                raise Problem(key, "differs from jobs.nodes, of which placement lists nodes: leave one out")
        for i, nodes in enumerate(jobs.placement):
            if len(nodes) != jobs.nodes:
                raise Problem(
                    ("jobs", "placement", i), f"lists {len(nodes)} nodes where jobs.nodes is {jobs.nodes}"
                )
            if len(set(nodes)) != len(nodes):
                raise Problem(("jobs", "placement", i), "lists a node twice: a job runs on each node once")
            for j, node in enumerate(nodes):
                _host(
                    ("jobs", "placement", i, j), node, list(compute), "computing node", hosts, topology.name
                )
    for i, node in enumerate(jobs.storage):
        _host(
            ("jobs", "storage", i), node, list(topology.storage_hosts), "storage node", hosts, topology.name
        )
    mixed = [m for mix in jobs.mixes for m in (mix.stage_in, mix.stage_out) if m is not None]
    moves = any(s.bytes for s in (jobs.stage_in, jobs.stage_out, *mixed)) or jobs.io is not None
    if moves and not topology.storage_hosts:
        raise Problem(
            ("topology",),
            f"{topology.name} has no storage node, yet jobs stage data: give a host the role storage",
        )


def _sizes(experiment: Experiment) -> Iterator[tuple[Key, int]]:
    """Every key that gives the nodes of a job."""
    yield ("jobs", "nodes"), experiment.jobs.nodes
    for i, mix in enumerate(experiment.jobs.mixes):
        if mix.nodes is not None:
            yield ("jobs", "mixes", i, "nodes"), mix.nodes


def _host(key: Key, node: str, known: list[str], what: str, hosts: Any, topology: str) -> None:
    if node in known:
        return
    if node in hosts:
        raise Problem(key, f"{node} is no {what} of {topology}: {nearest(node, known)}")
    raise Problem(key, f"there is no node {node!r} in {topology}: {nearest(node, known)}")


def under(key: Key, call: Callable[..., T], *arguments: Any) -> T:
    """`call`, with the keys of its Problems below `key`."""
    try:
        return call(*arguments)
    except Problem as problem:
        raise Problem((*key, *problem.key), problem.text) from None


def check_contention(study: ContentionStudy, folder: Path) -> ContentionStudy:
    """Raises Problem at the first key that cannot be."""
    model, key = study.contention, ("contention",)
    rising_ends((*key, "layout"), [part.to for part in model.layout])
    if any(a >= b for a, b in itertools.pairwise(model.ratios)):
        raise Problem((*key, "ratios"), "must rise: list each ratio once, the smallest first")
    loaders = model.ratios[-1] * model.targets
    if loaders > MAX_LOADERS:
        text = f"{model.ratios[-1]} loaders a target are more than {MAX_LOADERS:,} in all: give less"
        raise Problem((*key, "ratios"), text)
    if loaders > model.files:
        raise Problem((*key, "files"), "are fewer than the loaders of the largest ratio: give more files")
    if model.sizes.largest < model.sizes.median:
        raise Problem((*key, "sizes", "largest"), "is smaller than the median: give a larger one")
    slowdown_curve((*key, "slowdown"), model.slowdown)
    return study


def rising_ends(key: Key, ends: Sequence[int | None]) -> None:
    """Of the parts of a layout: each but the last ends, after the one before. Raises Problem."""
    if ends[-1] is not None:
        raise Problem(key, "ends before the largest files do: let the last part have no `to`")
    previous = 0
    for i, end in enumerate(ends[:-1]):
        if end is None or end <= previous:
            raise Problem((*key, i), "each part but the last needs a `to` larger than the one before")
        previous = end


def _compute(compute: Compute, folder: Path, key: Key) -> Compute:
    if compute.pattern is not None:
        pattern = (folder / compute.pattern).resolve()
        if not pattern.is_file():
            raise Problem(
                (*key, "pattern"), f"there is no pattern file {pattern}: make it with `waystage profile`"
            )
        compute = msgspec.structs.replace(compute, pattern=str(pattern))
    name = compute.program
    if "/" not in name:
        if name not in PROGRAMS:
            hint = nearest(name, sorted(PROGRAMS))
            raise Problem(
                (*key, "program"), f"unknown program {name!r}: {hint}, or give a path, such as ./{name}"
            )
        if compute.arguments:
            raise Problem((*key, "arguments"), f"the shipped program {name} takes none: remove them")
        return compute
    path = (folder / name).resolve()
    if not path.is_file():
        raise Problem((*key, "program"), f"there is no program {path}")
    if not os.access(path, os.X_OK):
        raise Problem((*key, "program"), f"{path} is not executable: chmod +x it")
    return msgspec.structs.replace(compute, program=str(path))


def _mixes(experiment: Experiment) -> None:
    seen: set[str] = set()
    for i, mix in enumerate(experiment.jobs.mixes):
        if mix.name in seen:
            raise Problem(
                ("jobs", "mixes", i, "name"), f"{mix.name} is there twice: give each mix its own name"
            )
        seen.add(mix.name)
