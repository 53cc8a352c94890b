"""Read a scenario file, with everything it names, and say precisely what is wrong with it.

Arrives: the path of a YAML file.
Leaves: `Loaded`: the scenario, its clusters and what its jobs send.
Must not know: how a run is made.

PFSim's files are read as they are: its names of algorithms, distributions and topologies, a topology as a bare path,
`node_selector` for `host_selector`. An error reads `FILE:LINE: KEY: what is wrong and how to mend it`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from waystage.experiment import documents
from waystage.experiment.problems import Key, Problem
from waystage.patterns import PatternError
from waystage.simulate import topologies
from waystage.simulate.algorithms import TASKS, AlgorithmError, build, canonical
from waystage.simulate.arrivals import TooManyJobs, submissions
from waystage.simulate.cluster import BITS_PER_BYTE, Cluster
from waystage.simulate.distributions import sampler
from waystage.simulate.scenario import AlgorithmChoice, JobSource, Scenario, TopologyChoice, shown
from waystage.simulate.traffic import MOST_PAIRS, Traffic, generate, pair_count, read_trace
from waystage.topology import slow_links

_KEYS = "duration, topology, algorithms, jobs"

_ALIAS_OPTIONS = {"pfsim.process_mapper.RandomProcessMapper": {"by": "host"}}
"""What makes a shipped algorithm do what PFSim's of that name did."""


@dataclass(frozen=True)
class Loaded:
    """`labels[i]` is what topology i is called in results; `traffics[s]` is what a job of source s sends. `warnings` are
    for people: what may not be what they meant."""

    scenario: Scenario
    clusters: tuple[Cluster, ...]
    labels: tuple[str, ...]
    traffics: tuple[Traffic, ...]
    warnings: tuple[str, ...] = ()


def load(path: Path) -> Loaded:
    """Raises ExperimentError."""
    document = documents.read(path, "a scenario", _KEYS)
    try:
        tree = _normal(documents.plain(document, lambda key, value: value))
        scenario = documents.convert(tree, Scenario)
        if "name" not in tree:
            scenario = msgspec.structs.replace(scenario, name=_name_of(path))
        return _check(scenario, path.resolve().parent)
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None


def _normal(tree: dict[str, Any]) -> dict[str, Any]:
    """Bare names and single values as the lists of mappings that they stand for."""
    tree = dict(tree)
    if "topology" in tree:
        tree["topology"] = [
            {"kind": "file", "params": {"path": item}} if isinstance(item, str) else item
            for item in _listed(tree["topology"])
        ]
    if isinstance(tree.get("algorithms"), dict):
        algorithms = dict(tree["algorithms"])
        if "node_selector" in algorithms and "host_selector" not in algorithms:
            algorithms["host_selector"] = algorithms.pop("node_selector")
        for task in TASKS:
            if task in algorithms:
                algorithms[task] = [_choice(item) for item in _listed(algorithms[task])]
        tree["algorithms"] = algorithms
    if "seeds" in tree:
        tree["seeds"] = _listed(tree["seeds"])
    return tree


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _choice(item: Any) -> Any:
    if not isinstance(item, str):
        return item
    return {"name": item, "options": _ALIAS_OPTIONS.get(item, {})}


def _name_of(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")
    return name[:64] or "scenario"


def _check(scenario: Scenario, folder: Path) -> Loaded:
    _lists(scenario)
    _algorithms(scenario)
    clusters = tuple(
        _under(("topology", i), topologies.build, t, folder) for i, t in enumerate(scenario.topology)
    )
    labels = _labels(scenario, clusters)
    for cluster, label in zip(clusters, labels, strict=True):
        for i, source in enumerate(scenario.jobs):
            if source.pattern is not None:  # before its pairs are made
                _fits(cluster, label, source.pattern.ranks, ("jobs", i, "pattern"))
    traffics = tuple(_source(scenario, i, folder) for i in range(len(scenario.jobs)))
    for cluster, label in zip(clusters, labels, strict=True):
        for i, traffic in enumerate(traffics):
            if scenario.jobs[i].trace is not None:
                _fits(cluster, label, traffic.ranks, ("jobs", i, "trace"))
        _storage(scenario, cluster, label)
    try:
        submissions(scenario, scenario.seeds[0])
    except TooManyJobs as error:
        raise Problem(("jobs", error.source, "submit"), str(error)) from None
    return Loaded(
        scenario, clusters, labels, traffics, tuple(_warnings(scenario, clusters, labels, traffics))
    )


def _warnings(
    scenario: Scenario, clusters: Sequence[Cluster], labels: Sequence[str], traffics: Sequence[Traffic]
) -> Iterator[str]:
    for cluster, label in zip(clusters, labels, strict=True):
        slow = slow_links((cluster.capacity * BITS_PER_BYTE).tolist())
        if slow:
            yield f"topology {label}: {slow}"
    for source, traffic in zip(scenario.jobs, traffics, strict=True):
        if traffic.warning:
            yield f"{source.trace}: {traffic.warning}"


def _fits(cluster: Cluster, label: str, ranks: int, key: Key) -> None:
    if ranks > cluster.total_slots:
        raise Problem(
            key,
            f"has {ranks} ranks, and topology {label} runs {cluster.total_slots} at once: "
            "give a larger topology, more slots a host (node data capacity), or a smaller job",
        )


def _storage(scenario: Scenario, cluster: Cluster, label: str) -> None:
    for i, source in enumerate(scenario.jobs):
        for key in ("stage_in", "stage_out"):
            if getattr(source, key) and scenario.mode == "load":
                raise Problem(("jobs", i, key), "stages data, which takes time: say mode: time")
            if getattr(source, key) and not cluster.storage:
                raise Problem(
                    ("jobs", i, key),
                    f"topology {label} has no storage node: give a host the data role=storage",
                )


def _lists(scenario: Scenario) -> None:
    for key, values in (("topology", scenario.topology), ("jobs", scenario.jobs), ("seeds", scenario.seeds)):
        if not values:
            raise Problem((key,), "the list is empty: give one at least")
    if len(set(scenario.seeds)) < len(scenario.seeds):
        raise Problem(("seeds",), "lists a seed twice: the second run would be the first again")


def _algorithms(scenario: Scenario) -> None:
    for task in TASKS:
        choices: tuple[AlgorithmChoice, ...] = getattr(scenario.algorithms, task)
        if not choices:
            raise Problem(("algorithms", task), "the list is empty: give one algorithm at least")
        seen: set[str] = set()
        for i, choice in enumerate(choices):
            key: Key = ("algorithms", task, i)
            try:
                build(task, choice.name, choice.options, 0)
            except AlgorithmError as error:
                raise Problem(key, str(error)) from None
            name = shown_as(task, choice)
            if name in seen:
                raise Problem(key, f"{name} is there twice: give one of them a label")
            seen.add(name)


def shown_as(task: Any, choice: AlgorithmChoice) -> str:
    """The name in results: the label, or ours for PFSim's name."""
    return choice.label or canonical(task, shown(choice))


def _labels(scenario: Scenario, clusters: tuple[Cluster, ...]) -> tuple[str, ...]:
    labels: list[str] = []
    for i, (choice, cluster) in enumerate(zip(scenario.topology, clusters, strict=True)):
        label = choice.label or _topology_name(choice, cluster)
        if label in labels:
            raise Problem(("topology", i), f"{label} is there twice: give one of them a label")
        labels.append(label)
    return tuple(labels)


def _topology_name(choice: TopologyChoice, cluster: Cluster) -> str:
    path = choice.params.get("path")
    return Path(path).stem if isinstance(path, str) else cluster.name


def _source(scenario: Scenario, index: int, folder: Path) -> Traffic:
    source: JobSource = scenario.jobs[index]
    key: Key = ("jobs", index)
    _under((*key, "submit"), sampler, source.submit)
    if source.duration is not None:
        _under((*key, "duration"), sampler, source.duration)
    elif scenario.mode == "load":
        raise Problem(
            key, "duration is missing: add it, or mode: time, in which a job takes what its traffic takes"
        )
    if (source.trace is None) == (source.pattern is None):
        raise Problem(key, "give either trace, the path of a pattern file or archive, or pattern, a rule")
    if source.pattern is not None:
        pairs = pair_count(source.pattern)
        if pairs > MOST_PAIRS:
            raise Problem(
                (*key, "pattern", "ranks"),
                f"{source.pattern.kind} of {source.pattern.ranks:,} ranks has {pairs:,} pairs; "
                f"at most {MOST_PAIRS:,} are simulated: give fewer ranks or partners",
            )
        return generate(source.pattern)
    assert source.trace is not None
    path = folder / source.trace
    if not path.exists():
        raise Problem((*key, "trace"), f"there is no file {source.trace} (looked for {path})")
    try:
        return read_trace(path)
    except PatternError as error:
        raise Problem((*key, "trace"), str(error)) from None


def _under(key: Key, call: Any, *arguments: Any) -> Any:
    """`call`, with the keys of its Problems below `key`."""
    try:
        return call(*arguments)
    except Problem as problem:
        raise Problem((*key, *problem.key), problem.text) from None
