"""Orders of ranks: permutations that never cost more, fewer bytes between switches where ranks are scattered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.controllers.collective_placements import CollectivePlacements
from waystage.events import (
    CollectiveDeclared,
    CollectiveObserved,
    CollectivePlaced,
    Envelope,
    Event,
    MpiRanksReported,
    TopologyChanged,
)
from waystage.forecast.rank_order import Call, best_order
from waystage.interconnect.generate import fat_tree, leaf_spine
from waystage.mpi_steps import steps_of
from waystage.state import State
from waystage.topology import Topology

EIGHT = leaf_spine(2, 4, 2, storage_hosts=0)
SIXTEEN = leaf_spine(4, 4, 4, storage_hosts=0)
PODS = fat_tree(4, storage_hosts=0)
ALTERNATE = [EIGHT.hosts_at[edge][at] for at in range(4) for edge in EIGHT.edge_switches]
ALGORITHMS = [
    ("allreduce", "recursive_doubling"),
    ("allreduce", "rabenseifner"),
    ("allreduce", "ring"),
    ("allgather", "ring"),
    ("allgather", "recursive_doubling"),
    ("allgather", "neighbor"),
    ("bcast", "binomial"),
    ("bcast", "pipeline"),
    ("bcast", "scatter_allgather_ring"),
]


def call(primitive: str, algorithm: str, size: int, root: int = -1, count: int = 1 << 20) -> Call:
    steps = steps_of(primitive, algorithm, size, count, root)
    return Call([dict.fromkeys(step.pairs, step.bytes) for step in steps], root)


def counted(topology: Topology, hosts: list[str], steps: Any) -> float:
    """Bytes on links between switches, pair by pair over shortest paths: what switches count."""
    total = 0.0
    for step in steps:
        for (a, b), size in step.items():
            if hosts[a] != hosts[b]:
                total += size * (len(topology.shortest_paths(hosts[a], hosts[b])[0]) - 3)
    return total


@given(
    topology=st.sampled_from([EIGHT, SIXTEEN, PODS, leaf_spine(3, 3, 2, storage_hosts=0)]),
    algorithm=st.sampled_from(ALGORITHMS),
    order=st.randoms(use_true_random=False),
    per_host=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=80, deadline=None)
def test_an_order_is_a_permutation_with_which_no_link_is_predicted_to_have_more(
    topology: Topology, algorithm: tuple[str, str], order: Any, per_host: int
) -> None:
    hosts = [host for host in topology.compute_hosts for _ in range(per_host)]
    order.shuffle(hosts)
    size = order.randint(2, len(hosts))
    hosts = hosts[:size]
    root = order.randrange(size) if algorithm[0] == "bcast" else -1
    one = call(*algorithm, size, root)
    found = best_order(topology, hosts, [one])
    assert sorted(found.ranks) == list(range(size))
    assert found.after.at_most(found.before)
    assert found.changes == (found.after.switch_bytes < found.before.switch_bytes)
    # What the algorithm really sends in the new order, over the paths of the topology.
    new_hosts = [hosts[rank] for rank in found.ranks]
    new_root = found.ranks.index(root) if root >= 0 else -1
    assert counted(topology, hosts, one.steps) == pytest.approx(found.before.switch_bytes)
    if (root, new_root) == (-1, -1):
        assert counted(topology, new_hosts, one.steps) == pytest.approx(found.after.switch_bytes)
    elif algorithm[1] in ("binomial", "pipeline"):
        again = call(*algorithm, size, new_root)
        assert counted(topology, new_hosts, again.steps) == pytest.approx(found.after.switch_bytes)


GATHER = ("allgather", "recursive_doubling")
"""Its last and largest step joins the most distant positions."""


@pytest.mark.parametrize(
    ("algorithm", "share"),
    [
        (("allreduce", "ring"), 2 / 8),
        (("allreduce", "rabenseifner"), 1 / 4),
        (GATHER, 1 / 4),
        (("bcast", "pipeline"), 1 / 7),
    ],
)
def test_heavy_steps_come_under_one_switch(algorithm: tuple[str, str], share: float) -> None:
    near = [host for edge in EIGHT.edge_switches for host in EIGHT.hosts_at[edge]]
    hosts = near if algorithm == GATHER else ALTERNATE
    found = best_order(EIGHT, hosts, [call(*algorithm, 8, 0 if algorithm[0] == "bcast" else -1)])
    assert found.after.switch_bytes == pytest.approx(found.before.switch_bytes * share)
    under = Counter(EIGHT.attachment[hosts[rank]][0] for rank in found.ranks[:4])
    assert len(under) == (2 if algorithm == GATHER else 1)


def test_an_order_that_is_as_good_already_stays() -> None:
    hosts = [host for edge in SIXTEEN.edge_switches for host in SIXTEEN.hosts_at[edge]]
    for algorithm in (("allreduce", "ring"), ("allreduce", "rabenseifner"), ("allgather", "neighbor")):
        found = best_order(SIXTEEN, hosts, [call(*algorithm, 16)])
        assert not found.changes and found.after == found.before
    assert not best_order(EIGHT, ["c1"] * 6, [call("allreduce", "ring", 6)]).changes
    assert not best_order(EIGHT, list(EIGHT.hosts_at["edge1"]), [call("allreduce", "ring", 4)]).changes


def test_in_a_fat_tree_ranks_of_a_pod_stay_together() -> None:
    edges = PODS.edge_switches
    hosts = [PODS.hosts_at[edge][at] for at in range(2) for edge in (*edges[::2], *edges[1::2])]
    found = best_order(PODS, hosts, [call("allreduce", "ring", 16)])
    pods = [edges.index(PODS.attachment[hosts[rank]][0]) // 2 for rank in found.ranks]
    assert [pod for at, pod in enumerate(pods) if at == 0 or pods[at - 1] != pod] == list(dict.fromkeys(pods))


# -- what a program that asks gets --------------------------------------------------------------------------


class Asked:
    """A controller's state and answers."""

    def __init__(self, topology: Topology, hosts: list[str], per_host: int = 1) -> None:
        self.published: list[CollectivePlaced] = []
        self.placements, self.state = CollectivePlacements(self._publish), State()
        self.see(TopologyChanged(topology=topology))
        self.size = len(hosts) * per_host
        for at, host in enumerate(hosts):
            ranks = tuple(range(at * per_host, (at + 1) * per_host))
            self.see(MpiRanksReported(app="0/a", agent="n1", host=host, ranks=ranks, size=self.size))

    def _publish(self, event: Event) -> None:
        assert isinstance(event, CollectivePlaced)
        self.published.append(event)

    def see(self, event: Event) -> None:
        item = Envelope(event=event, event_id="e", time_ns=self.state.time_ns + 1)
        self.state.apply(item)
        self.placements.seen(item, self.state)

    def declare(self, algorithm: str, key: str = "k", **more: Any) -> None:
        fields: dict[str, Any] = {
            "primitive": "allreduce",
            "bytes": 1 << 20,
            "ranks": tuple(range(self.size)),
        } | more
        self.see(CollectiveDeclared(app="0/a", agent="n1", key=key, algorithm=algorithm, **fields))

    def order(self, **more: Any) -> tuple[int, ...] | None:
        """What is answered to a communicator that asks now."""
        self.declare("rank-order", key="asks", **more)
        answers = [event.order for event in self.published if event.key == "asks"]
        assert len(answers) == 1, "each asks once, and gets one answer"
        return answers[0]


def test_a_program_gets_the_order_for_the_algorithm_that_it_has_declared() -> None:
    asked = Asked(EIGHT, ALTERNATE)
    asked.declare("ring")
    assert asked.order() == (0, 2, 4, 6, 1, 3, 5, 7)


def test_without_a_declared_algorithm_or_a_better_order_the_present_one_stays() -> None:
    assert Asked(EIGHT, ALTERNATE).order() == ()
    other = Asked(EIGHT, ALTERNATE)
    other.declare("ring", primitive="bcast", root=0)
    assert other.order() == ()
    grouped = Asked(EIGHT, [host for edge in EIGHT.edge_switches for host in EIGHT.hosts_at[edge]])
    grouped.declare("ring")
    assert grouped.order() == ()


def test_messages_of_first_calls_are_judged_where_each_host_has_one_rank() -> None:
    for per_host, expected in ((1, (0, 2, 4, 6, 1, 3, 5, 7)), (2, ())):
        asked = Asked(EIGHT, ALTERNATE, per_host)
        asked.declare("observed")
        ring = {rank: (((rank + 1) % asked.size, 1 << 20),) for rank in range(asked.size)}
        asked.see(CollectiveObserved(app="0/a", agent="n1", key="k", sent=ring))
        assert asked.order() == expected


def test_ranks_that_have_not_reported_are_waited_for() -> None:
    asked = Asked(EIGHT, ALTERNATE[:-1])
    asked.declare("ring", ranks=tuple(range(8)))
    asked.declare("rank-order", key="asks", ranks=tuple(range(8)))
    assert not [event for event in asked.published if event.key == "asks"]
    asked.see(MpiRanksReported(app="0/a", agent="n1", host=ALTERNATE[-1], ranks=(7,), size=8))
    (answer,) = [event for event in asked.published if event.key == "asks"]
    assert answer.order == (0, 2, 4, 6, 1, 3, 5, 7)


def test_an_order_that_another_agent_asks_for_has_no_effect() -> None:
    asked = Asked(EIGHT, ALTERNATE)
    asked.declare("ring")
    asked.see(
        CollectiveDeclared(
            app="0/a",
            agent="n9",
            key="x",
            primitive="allreduce",
            algorithm="rank-order",
            bytes=1,
            ranks=(0, 1),
        )
    )
    assert not [event for event in asked.published if event.key == "x"]


def test_requests_for_orders_are_bounded() -> None:
    asked = Asked(EIGHT, ALTERNATE[:-1])
    for number in range(100):
        asked.declare("rank-order", key=f"k{number}", ranks=tuple(range(8)))
    assert len(asked.state.mpi.programs["0/a"].orders) <= 16
    asked.see(MpiRanksReported(app="0/a", agent="n1", host=ALTERNATE[-1], ranks=(7,), size=8))
    assert [event.key for event in asked.published] == [f"k{number}" for number in range(84, 100)]
