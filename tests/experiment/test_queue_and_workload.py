"""First come, first served, on alternate edges; and sets that a seed alone decides."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.experiment.queue import QueueError, Start, alternate_edges, node_queue
from waystage.experiment.schema import Compute, Distribution, Experiment, Jobs, Mix, PolicyChoice, Staging
from waystage.experiment.workload import jobs_of_set
from waystage.interconnect.graphml import read_topology

PAPER = read_topology("paper")


def edges_of(nodes: tuple[str, ...]) -> list[str]:
    return [PAPER.attachment[node][0] for node in nodes]


class Nodes:
    """A queue of the paper's cluster that starts jobs at each submission and end, as every world does."""

    def __init__(self, placement: Any = "linear", concurrent: int | None = None) -> None:
        self.queue = node_queue(PAPER, placement, concurrent)

    def submit(self, job: str, nodes: int) -> list[Start]:
        self.queue.submit(job, nodes)
        return list(self.queue.starts())

    def finish(self, job: str) -> list[Start]:
        self.queue.finish(job)
        return list(self.queue.starts())


def test_two_jobs_of_three_fill_the_paper_cluster_on_alternate_edges() -> None:
    queue = Nodes("alternate-edges")
    started = [start for n in range(6) for start in queue.submit(f"j{n}", 3)]
    assert [start.job_id for start in started] == ["j0", "j1"]
    for start in started:
        first, second, third = edges_of(start.nodes)
        assert first != second and second != third
    # Each edge switch leads one of the two jobs: neither side is favoured.
    assert {edges_of(start.nodes)[0] for start in started} == set(PAPER.edge_switches)


def test_the_next_job_starts_when_one_ends_and_gets_its_nodes() -> None:
    queue = Nodes("alternate-edges")
    first = queue.submit("a", 3)[0]
    queue.submit("b", 3)
    assert queue.submit("c", 3) == []
    (start,) = queue.finish("a")
    assert start.job_id == "c"
    assert set(start.nodes) == set(first.nodes)


@pytest.mark.parametrize(
    ("first", "then", "after_the_end"),
    [(6, (3, 3), ["0", "1"]), (2, (5, 1), ["0", "1"])],
    ids=["every job that fits starts after one end", "a job that does not fit blocks those behind it"],
)
def test_an_end_starts_waiting_jobs_in_order(
    first: int, then: tuple[int, ...], after_the_end: list[str]
) -> None:
    queue = Nodes()
    queue.submit("first", first)
    assert [queue.submit(str(n), nodes) for n, nodes in enumerate(then)] == [[], []]
    assert [start.job_id for start in queue.finish("first")] == after_the_end


def test_the_limit_on_concurrent_jobs_holds() -> None:
    queue = Nodes(concurrent=1)
    assert len(queue.submit("a", 1)) == 1
    assert queue.submit("b", 1) == []
    assert [start.job_id for start in queue.finish("a")] == ["b"]


def test_listed_placements_are_used_in_turn_when_free() -> None:
    queue = Nodes((("c1", "c4"), ("c2", "c5")))
    assert [queue.submit(n, 2)[0].nodes for n in "ab"] == [("c1", "c4"), ("c2", "c5")]
    assert queue.submit("c", 2) == []
    assert queue.finish("b")[0].nodes == ("c2", "c5")


def test_what_can_never_be_is_refused() -> None:
    queue = Nodes()
    with pytest.raises(QueueError, match="7 of 6"):
        queue.submit("a", 7)
    queue.submit("a", 1)
    with pytest.raises(QueueError, match="already"):
        queue.submit("a", 1)
    with pytest.raises(QueueError, match="does not run"):
        queue.finish("b")


@given(free=st.sets(st.sampled_from(PAPER.compute_hosts), min_size=1), data=st.data())
def test_alternate_edges_takes_distinct_free_nodes_and_uses_both_edges_where_both_have_some(
    free: set[str], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(free)))
    nodes = alternate_edges(PAPER, count, sorted(free))
    assert len(nodes) == len(set(nodes)) == count
    assert set(nodes) <= free
    if count > 1:
        assert len(set(edges_of(nodes))) == min(2, len(set(edges_of(tuple(free)))))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    ends=st.lists(st.integers(0, 5), max_size=30),
    placement=st.sampled_from(["linear", "alternate-edges"]),
)
def test_no_node_is_given_twice_and_jobs_start_in_order(
    sizes: list[int], ends: list[int], placement: str
) -> None:
    queue = Nodes(placement)
    started = [start for n, size in enumerate(sizes) for start in queue.submit(str(n), size)]
    for end in ends:
        running = list(queue.queue.running)
        if running:
            started += queue.finish(running[end % len(running)])
        nodes = [node for nodes in queue.queue.running.values() for node in nodes]
        assert len(nodes) == len(set(nodes))
    while queue.queue.running:
        started += queue.finish(next(iter(queue.queue.running)))
    assert [start.job_id for start in started] == [str(n) for n in range(len(sizes))]


def experiment(**jobs: object) -> Experiment:
    return Experiment(
        name="x",
        topology="paper",
        policies=(PolicyChoice(name="ecmp"),),
        jobs=Jobs(count=6, nodes=3, **jobs),  # type: ignore[arg-type]
        seed=7,
    )


def test_a_set_depends_on_its_seed_and_number_alone() -> None:
    staggered = experiment(arrivals=Distribution(distribution="exponential", mean_s=2))
    first, again, other = (jobs_of_set(staggered, PAPER, n) for n in (0, 0, 1))
    assert first == again
    assert [j.submit_s for j in first] != [j.submit_s for j in other]
    assert first[0].submit_s == 0
    assert [j.submit_s for j in first] == sorted(j.submit_s for j in first)


def test_uniform_arrivals_keep_their_bounds() -> None:
    jobs = jobs_of_set(experiment(arrivals=Distribution(distribution="uniform", low_s=1, high_s=3)), PAPER, 3)
    gaps = [b.submit_s - a.submit_s for a, b in itertools.pairwise(jobs)]
    assert all(1 <= gap <= 3 for gap in gaps)


def test_mixes_divide_a_set_by_their_shares_and_override_what_they_name() -> None:
    mixed = experiment(
        stage_in=Staging(bytes=5),
        mixes=(
            Mix(name="talk", share=2, compute=Compute(message=9)),
            Mix(name="stage", share=1, stage_in=Staging(bytes=100)),
        ),
    )
    jobs = jobs_of_set(mixed, PAPER, 0)
    kinds = [job.kind for job in jobs]
    assert (kinds.count("talk"), kinds.count("stage")) == (4, 2)
    for job in jobs:
        assert job.stage_in.bytes == (100 if job.kind == "stage" else 5)
        assert (job.compute.message == 9) == (job.kind == "talk")


def test_jobs_take_storage_nodes_in_turn() -> None:
    sixteen = read_topology("sixteen")
    jobs = jobs_of_set(experiment(), sixteen, 0)
    assert {job.storage for job in jobs} == set(sixteen.storage_hosts)
    assert [job.storage for job in jobs[:2]] == list(sixteen.storage_hosts[:2])


def test_shipped_experiments_load() -> None:
    pytest.importorskip("waystage.policies.demand_separation")
    from waystage.experiment.loading import kind_of, load

    folder = Path(__file__).parents[2] / "experiments"
    files = [file for file in sorted(folder.glob("*.yaml")) if kind_of(file) == "policies"]
    assert {"demo.yaml", "staging-collision.yaml"} <= {f.name for f in files}
    for file in files:
        load(file)
