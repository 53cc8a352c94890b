"""What makes an experiment impossible although it is well formed.

Arrives: an `Experiment` as written, and the folder of its file.
Leaves: the `Experiment` with paths made absolute, and its `Topology`.
Must not know: YAML, line numbers, any world.
"""

from __future__ import annotations

import difflib
import inspect
import os
from pathlib import Path
from typing import Any

import msgspec

from waystage.experiment.problems import Key, Problem
from waystage.experiment.programs import PROGRAMS
from waystage.experiment.schema import Arrivals, Compute, Experiment, PolicyChoice
from waystage.interconnect.graphml import read_topology, shipped_topologies
from waystage.policies.base import Policy, PolicyError, load_policy, policy_factory
from waystage.topology import Topology, TopologyError


def check(experiment: Experiment, folder: Path) -> tuple[Experiment, Topology]:
    """Raises Problem at the first key that cannot be."""
    topology, name = _topology(experiment.topology, folder)
    _policies(experiment)
    _nodes(experiment, topology)
    _arrivals(experiment.jobs.arrivals)
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
            hint = _near(name, list(shipped_topologies()))
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
    if jobs.nodes > len(compute):
        raise Problem(
            ("jobs", "nodes"), f"{jobs.nodes} nodes a job; {topology.name} has {len(compute)} computing nodes"
        )
    if isinstance(jobs.placement, tuple):
        if not jobs.placement:
            raise Problem(
                ("jobs", "placement"), "the list of placements is empty: give one list of nodes at least"
            )
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


def _host(key: Key, node: str, known: list[str], what: str, hosts: Any, topology: str) -> None:
    if node in known:
        return
    if node in hosts:
        raise Problem(key, f"{node} is no {what} of {topology}: {_near(node, known)}")
    raise Problem(key, f"there is no node {node!r} in {topology}: {_near(node, known)}")


def _arrivals(arrivals: Arrivals) -> None:
    key: Key = ("jobs", "arrivals")
    kind = arrivals.distribution
    if kind in ("fixed", "exponential") and arrivals.mean_s is None:
        raise Problem(key, f"distribution {kind} needs mean_s, the seconds between two jobs")
    if kind == "uniform":
        if arrivals.low_s is None or arrivals.high_s is None:
            raise Problem(key, "distribution uniform needs low_s and high_s")
        if arrivals.low_s > arrivals.high_s:
            raise Problem(
                (*key, "low_s"), f"{arrivals.low_s} is above high_s, {arrivals.high_s}: exchange them"
            )


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
            hint = _near(name, sorted(PROGRAMS))
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


def _near(given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(known) or '(none)'}"
