"""Bytes that a switch counted late are shown in the interval in which they crossed the link."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from waystage.events import Envelope, LinkUse, PortUse
from waystage.experiment.results import PortSample
from waystage.interconnect.graphml import read_topology
from waystage.worlds.late_counts import redistribute
from waystage.worlds.recorder import Recorder

PAPER = read_topology("paper")  # 100 Mbit/s everywhere: 12,500,000 bytes a second
LINK = {("core1", 1): 100_000_000}


def sample(at_s: float, traffic: str, count: int, interval_s: float = 1.0) -> PortSample:
    return PortSample(
        policy="ecmp",
        set=0,
        at_s=at_s,
        interval_s=interval_s,
        node="core1",
        port=1,
        peer="edge1",
        traffic=traffic,
        bytes=count,
    )


def by_time(samples: list[PortSample], traffic: str) -> dict[float, int]:
    return {s.at_s: s.bytes for s in samples if s.traffic == traffic}


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
    found = redistribute(
        [
            sample(1.0, "all", 0),
            sample(2.0, "all", 20_000_000),
            sample(1.0, "mpi", 0),
            sample(2.0, "mpi", 20_000_000),
        ],
        LINK,
    )
    assert by_time(found, "all") == by_time(found, "mpi") == {1.0: 7_500_000, 2.0: 12_500_000}


def test_what_was_dropped_at_the_queue_did_not_cross_the_link() -> None:
    found = redistribute(
        [sample(1.0, "all", 12_000_000), sample(1.0, "mpi", 9_000_000), sample(1.0, "staging", 9_000_000)],
        LINK,
    )
    assert by_time(found, "mpi")[1.0] + by_time(found, "staging")[1.0] == 12_000_000


def test_other_policies_and_sets_are_left_alone() -> None:
    other = PortSample(
        policy="x",
        set=1,
        at_s=1.0,
        interval_s=1.0,
        node="core1",
        port=1,
        peer="edge1",
        traffic="all",
        bytes=5,
    )
    found = redistribute([sample(1.0, "all", 7), other], LINK)
    assert {(s.policy, s.set, s.bytes) for s in found} == {("ecmp", 0, 7), ("x", 1, 5)}


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
    samples = []
    for second, (whole, mpi, staging) in enumerate(readings, start=1):
        samples += [
            sample(second, "all", whole),
            sample(second, "mpi", mpi),
            sample(second, "staging", staging),
        ]
    found = redistribute(samples, LINK)
    assert sum(s.bytes for s in found if s.traffic == "all") == sum(whole for whole, _, _ in readings)
    for name, column in (("mpi", 1), ("staging", 2)):
        assert sum(s.bytes for s in found if s.traffic == name) <= sum(
            reading[column] for reading in readings
        )
    at: dict[float, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for s in found:
        at[s.at_s][s.traffic] += s.bytes
        assert s.bytes > 0
    for counts in at.values():
        assert counts["mpi"] + counts["staging"] <= counts["all"]
    if sum(whole for whole, _, _ in readings) <= 12_500_000:
        assert all(counts["all"] <= 12_500_000 for counts in at.values())
    assert redistribute(found, LINK) == found
