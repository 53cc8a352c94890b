"""Read a sweep, with everything that it names.

Arrives: the path of an experiment file.
Leaves: `Loaded`: the sweep, its clusters and what its jobs send.
Must not know: how a run is made.

An error reads `FILE:LINE: KEY: what is wrong and how to fix it`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waystage.experiment.checks import under
from waystage.experiment.distributions import sampler
from waystage.experiment.loading import load_as
from waystage.experiment.problems import Key, Problem
from waystage.experiment.scheduling import AlgorithmError
from waystage.experiment.schema import Choice, JobSource, Sweep, TopologyChoice
from waystage.patterns import PatternError
from waystage.simulate import topologies
from waystage.simulate.algorithms import TASKS, build
from waystage.simulate.arrivals import TooManyJobs, submissions
from waystage.simulate.cluster import BITS_PER_BYTE, Cluster
from waystage.simulate.traffic import MOST_PAIRS, Traffic, generate, pair_count, read_trace
from waystage.topology import slow_links


@dataclass(frozen=True)
class Loaded:
    """`labels[i]` is what topology i is called in results; `traffics[s]` is what a job of source s sends. `warnings` are
    for people: what may not be what they meant."""

    sweep: Sweep
    clusters: tuple[Cluster, ...]
    labels: tuple[str, ...]
    traffics: tuple[Traffic, ...]
    warnings: tuple[str, ...] = ()


def load(path: Path) -> Loaded:
    """Raises ExperimentError."""
    return load_as("sweep", path, _check)


def _check(sweep: Sweep, folder: Path) -> Loaded:
    _lists(sweep)
    _algorithms(sweep)
    clusters = tuple(
        under(("topology", i), topologies.build, t, folder) for i, t in enumerate(sweep.topology)
    )
    labels = _labels(sweep, clusters)
    for cluster, label in zip(clusters, labels, strict=True):
        for i, source in enumerate(sweep.jobs):
            if source.pattern is not None:  # before its pairs are made
                _fits(cluster, label, source.pattern.ranks, ("jobs", i, "pattern"))
    traffics = tuple(_source(sweep, i, folder) for i in range(len(sweep.jobs)))
    for cluster, label in zip(clusters, labels, strict=True):
        for i, traffic in enumerate(traffics):
            if sweep.jobs[i].trace is not None:
                _fits(cluster, label, traffic.ranks, ("jobs", i, "trace"))
        _storage(sweep, cluster, label)
    try:
        submissions(sweep, sweep.seeds[0])
    except TooManyJobs as error:
        raise Problem(("jobs", error.source, "submit"), str(error)) from None
    return Loaded(sweep, clusters, labels, traffics, tuple(_warnings(sweep, clusters, labels, traffics)))


def _warnings(
    sweep: Sweep, clusters: Sequence[Cluster], labels: Sequence[str], traffics: Sequence[Traffic]
) -> Iterator[str]:
    for cluster, label in zip(clusters, labels, strict=True):
        slow = slow_links((cluster.capacity * BITS_PER_BYTE).tolist())
        if slow:
            yield f"topology {label}: {slow}"
    for source, traffic in zip(sweep.jobs, traffics, strict=True):
        if traffic.warning:
            yield f"{source.trace}: {traffic.warning}"


def _fits(cluster: Cluster, label: str, ranks: int, key: Key) -> None:
    if ranks > cluster.total_slots:
        raise Problem(
            key,
            f"has {ranks} ranks, and topology {label} runs {cluster.total_slots} at once: "
            "give a larger topology, more slots a host (node data capacity), or a smaller job",
        )


def _storage(sweep: Sweep, cluster: Cluster, label: str) -> None:
    for i, source in enumerate(sweep.jobs):
        for key in ("stage_in", "stage_out"):
            if getattr(source, key) and sweep.mode == "load":
                raise Problem(("jobs", i, key), "stages data, which takes time: say mode: time")
            if getattr(source, key) and not cluster.storage:
                raise Problem(
                    ("jobs", i, key),
                    f"topology {label} has no storage node: give a host the data role=storage",
                )


def _lists(sweep: Sweep) -> None:
    for key, values in (("topology", sweep.topology), ("jobs", sweep.jobs), ("seeds", sweep.seeds)):
        if not values:
            raise Problem((key,), "the list is empty: give one at least")
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise Problem(("seeds",), "lists a seed twice: the second run would be the first again")


def _algorithms(sweep: Sweep) -> None:
    for task in TASKS:
        choices: tuple[Choice, ...] = getattr(sweep.algorithms, task)
        if not choices:
            raise Problem(("algorithms", task), "the list is empty: give one algorithm at least")
        seen: set[str] = set()
        for i, choice in enumerate(choices):
            key: Key = ("algorithms", task, i)
            try:
                build(task, choice.name, choice.options, 0)
            except AlgorithmError as error:
                raise Problem(key, str(error)) from None
            if choice.shown in seen:
                raise Problem(key, f"{choice.shown} is there twice: give one of them a label")
            seen.add(choice.shown)


def _labels(sweep: Sweep, clusters: tuple[Cluster, ...]) -> tuple[str, ...]:
    labels: list[str] = []
    for i, (choice, cluster) in enumerate(zip(sweep.topology, clusters, strict=True)):
        label = choice.label or _topology_name(choice, cluster)
        if label in labels:
            raise Problem(("topology", i), f"{label} is there twice: give one of them a label")
        labels.append(label)
    return tuple(labels)


def _topology_name(choice: TopologyChoice, cluster: Cluster) -> str:
    path = choice.params.get("path")
    return Path(path).stem if isinstance(path, str) else cluster.name


def _source(sweep: Sweep, index: int, folder: Path) -> Traffic:
    source: JobSource = sweep.jobs[index]
    key: Key = ("jobs", index)
    under((*key, "submit"), sampler, source.submit)
    if source.duration is not None:
        under((*key, "duration"), sampler, source.duration)
    elif sweep.mode == "load":
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
