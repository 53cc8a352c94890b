"""Bytes that a switch counted late are shown in the interval in which they crossed the link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waystage.events import CLASSES, Envelope, LinkUse, PortUse
from waystage.experiment.timelines import PortSample
from waystage.interconnect.graphml import read_topology
from waystage.worlds.late_counts import settle
from waystage.worlds.recorder import Recorder

PAPER = read_topology("paper")  # 100 Mbit/s everywhere: 12,500,000 bytes a second
LINK_BPS = 100_000_000
PORTS = [("core1", 1), ("core1", 2), ("core2", 1)]


def by_time(samples: Sequence[PortSample], traffic: str) -> dict[float, int]:
    return {s.at_s: s.bytes for s in samples if s.traffic == traffic}


def settled(counts: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Of a port, in intervals of a second."""
    columns = {name: np.array(column, dtype=np.int64) for name, column in counts.items()}
    settle(columns, [1.0] * len(columns["all"]), LINK_BPS)
    return {name: column.tolist() for name, column in columns.items()}


def test_a_class_counted_late_never_exceeds_the_link() -> None:
    """What the review saw: 125 Mbit/s of `mpi` on a link of 100, because a flow entry was looked at late."""
    recorder = Recorder(PAPER, start_ns=0)
    recorder.begin("ecmp", 0)
    readings = [(12_000_000, 8_000_000), (12_000_000, 15_625_000), (5_000_000, 5_000_000)]
    for second, (whole, mpi) in enumerate(readings, start=1):
        ports = (PortUse(node="core1", port=1, bytes=whole, by_class={"mpi": mpi}),)
        recorder(
            Envelope(
                event=LinkUse(interval_ns=10**9, ports=ports), event_id=str(second), time_ns=second * 10**9
            )
        )
    found = recorder.samples
    assert by_time(found, "all") == {1.0: 12_000_000, 2.0: 12_000_000, 3.0: 5_000_000}
    assert by_time(found, "mpi") == {1.0: 11_625_000, 2.0: 12_000_000, 3.0: 5_000_000}


def test_a_missed_reading_is_spread_over_the_time_that_it_covers() -> None:
    found = settled({"all": [0, 20_000_000], "mpi": [0, 20_000_000]})
    assert found == {"all": [7_500_000, 12_500_000], "mpi": [7_500_000, 12_500_000]}


def test_what_was_dropped_at_the_queue_did_not_cross_the_link() -> None:
    found = settled({"all": [12_000_000], "mpi": [9_000_000], "staging": [9_000_000]})
    assert found["mpi"][0] + found["staging"][0] == 12_000_000


def test_other_policies_and_sets_are_left_alone() -> None:
    recorder = Recorder(PAPER, start_ns=0)
    for number, (policy, count) in enumerate((("ecmp", 20_000_000), ("x", 5)), start=1):
        recorder.begin(policy, number - 1)
        ports = (PortUse(node="core1", port=1, bytes=count),)
        use = LinkUse(interval_ns=10**9, ports=ports)
        recorder(Envelope(event=use, event_id=policy, time_ns=number * 10**9))
        recorder.finish()
    assert {(s.policy, s.set, s.bytes) for s in recorder.samples} == {("ecmp", 0, 20_000_000), ("x", 1, 5)}


@given(
    st.lists(
        st.tuples(st.integers(0, 20_000_000), st.integers(0, 20_000_000), st.integers(0, 20_000_000)),
        min_size=1,
        max_size=12,
    )
)
def test_classes_stay_below_their_port_and_the_ports_sum_is_kept(
    readings: list[tuple[int, int, int]],
) -> None:
    before = dict(zip(("all", "mpi", "staging"), zip(*readings, strict=True), strict=True))
    found = settled(before)
    assert sum(found["all"]) == sum(before["all"])
    for name in ("mpi", "staging"):
        assert sum(found[name]) <= sum(before[name]) and min(found[name]) >= 0
    for whole, mpi, staging in zip(*found.values(), strict=True):
        assert mpi + staging <= whole
    if sum(before["all"]) <= 12_500_000:
        assert max(found["all"]) <= 12_500_000
    assert settled(found) == found


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(range(len(PORTS))),
                st.tuples(*[st.integers(0, 8_000_000) for _ in CLASSES]),
                st.integers(-3_000_000, 3_000_000),
            ),
            max_size=len(PORTS),
            unique_by=lambda use: use[0],
        ),
        max_size=8,
    )
)
def test_samples_of_many_ports_are_those_of_each_port_settled_by_itself(
    readings: list[list[tuple[int, tuple[int, ...], int]]],
) -> None:
    recorder = Recorder(PAPER, start_ns=0, interval_s=1.0)
    recorder.begin("ecmp", 0)
    times: list[float] = []
    counts: dict[tuple[str, int], dict[str, dict[float, int]]] = defaultdict(lambda: defaultdict(dict))
    for second, uses in enumerate(readings, start=1):
        ports = []
        for number, by_class, more in uses:
            node, port = PORTS[number]
            whole = max(0, sum(by_class) + more)
            ports.append(
                PortUse(node=node, port=port, bytes=whole, by_class=dict(zip(CLASSES, by_class, strict=True)))
            )
            for name, count in (("all", whole), *zip(CLASSES, by_class, strict=True)):
                counts[node, port][name][float(second)] = count
        if ports:
            times.append(float(second))
        use = LinkUse(interval_ns=10**9, ports=tuple(ports))
        recorder(Envelope(event=use, event_id=str(second), time_ns=second * 10**9))
    expected = []
    for (node, port), by_name in counts.items():
        columns = {
            name: np.array([of.get(at, 0) for at in times], dtype=np.int64) for name, of in by_name.items()
        }
        settle(columns, [1.0] * len(times), LINK_BPS)
        for name, column in columns.items():
            expected += [(at, node, port, name, n) for at, n in zip(times, column.tolist(), strict=True) if n]
    found = [(s.at_s, s.node, s.port, s.traffic, s.bytes) for s in recorder.samples]
    assert found == sorted(expected)
