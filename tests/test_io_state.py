"""Applications with collective I/O in the state: phases, paces, service of aggregators, grants for one operation."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import events
from waystage.io_state import SAMPLES, IoApplication
from waystage.state import State

SECOND = 10**9
A, B = "1000/a", "1000/b"


class Folding:
    """A state, and events that come one after the other."""

    def __init__(self) -> None:
        self.state, self.now, self.count = State(), SECOND, 0

    def see(self, event: events.Event, after_s: float = 1.0) -> Folding:
        self.now += round(after_s * SECOND)
        self.count += 1
        self.state.apply(events.Envelope(event=event, event_id=str(self.count), time_ns=self.now))
        return self

    def app(self, name: str = A) -> IoApplication:
        return self.state.io.applications[name]

    def start(self, name: str = A, host: str = "c1", servers: tuple[str, ...] = ("c1",)) -> Folding:
        self.see(events.IoApplicationStarted(app=name, agent=host, host=host, ranks=4, user="ada"), 0)
        for server in servers:
            self.see(events.AggregatorStarted(app=name, agent=host, aggregator=server, host=host), 0)
        return self

    def write(self, op: int, took_s: float, name: str = A, after_s: float = 1.0, size: int = 1000) -> Folding:
        self.see(events.IoRequested(app=name, agent="c1", op=op, bytes=size), after_s)
        done = events.IoCompleted(app=name, agent="c1", op=op, bytes=size, took_ns=round(took_s * SECOND))
        return self.see(done, took_s)

    def report(self, host: str = "c1", **use: Any) -> Folding:
        server = events.AggregatorUse(app=A, aggregator=host, **use)
        return self.see(events.AggregatorReport(agent=host, servers=(server,)))


def test_an_application_is_known_from_its_first_node_to_its_last() -> None:
    folding = Folding().start(host="c1").start(host="c2", servers=("c2",))
    assert (folding.app().ranks, folding.app().offered, folding.app().user) == (8, ("c1", "c2"), "ada")
    folding.see(events.IoApplicationFinished(app=A, agent="c1", host="c1", outcome="lost"))
    assert folding.app().offered == ("c2",), "its aggregator has gone with it"
    folding.see(events.IoApplicationFinished(app=A, agent="c2", host="c2"))
    assert folding.state.io.applications == {}


def test_an_end_that_another_agent_tells_ends_nothing() -> None:
    folding = Folding().start(host="c1")
    folding.see(events.IoApplicationFinished(app=A, agent="c9", host="c1"))
    assert folding.app().ranks == 4


def test_service_is_the_difference_of_totals_and_an_aggregator_that_starts_anew_counts_from_nothing() -> None:
    folding = Folding().start()
    folding.report(bytes=100, busy_ns=1000, writes=2).report(bytes=300, busy_ns=4000, writes=4)
    folding.report(bytes=300, busy_ns=4000, writes=4).report(bytes=50, busy_ns=100, writes=1)
    samples = folding.app().servers["c1"].samples
    assert [(s.bytes, s.busy_ns, s.writes) for s in samples] == [(100, 1000, 2), (200, 3000, 2), (50, 100, 1)]
    for total in range(100, 100 + 3 * SAMPLES):
        folding.report(bytes=total, busy_ns=total, writes=total)
    assert len(samples) == SAMPLES


def test_a_report_of_another_nodes_aggregator_is_ignored() -> None:
    folding = Folding().start()
    use = events.AggregatorUse(app=A, aggregator="c1", bytes=100, busy_ns=1, writes=1)
    folding.see(events.AggregatorReport(agent="c9", servers=(use,)))
    assert folding.app().servers["c1"].samples == []


def test_paces_tell_operations_alone_from_those_beside_others() -> None:
    folding = Folding().start(A).start(B)
    folding.write(1, took_s=2.0)
    folding.see(events.IoRequested(app=A, agent="c1", op=2, bytes=1000))
    folding.write(1, took_s=4.0, name=B, after_s=0.5)
    folding.see(events.IoCompleted(app=A, agent="c1", op=2, bytes=1000, took_ns=5 * SECOND), 0.5)
    app = folding.app(A)
    assert (app.alone.took_ns, app.shared.took_ns, folding.app(B).shared.operations) == (
        2 * SECOND,
        5 * SECOND,
        1,
    )
    assert folding.state.io.alone_ns(app, 500) == SECOND


def test_applications_on_other_storage_do_not_count_as_beside() -> None:
    folding = Folding().start(A).start(B)
    folding.see(events.IoRequested(app=A, agent="c1", op=1, bytes=10, storage="lustre"))
    folding.see(events.IoRequested(app=B, agent="c1", op=1, bytes=10, storage="nfs"))
    folding.see(events.IoCompleted(app=B, agent="c1", op=1, bytes=10, took_ns=5))
    assert folding.app(B).alone.operations == 1 and folding.state.io.beside(folding.app(A)) == []


def test_the_period_is_between_phases_and_operations_one_after_the_other_are_one_phase() -> None:
    folding = Folding().start()
    for phase in range(4):
        folding.write(3 * phase + 1, took_s=1.0, after_s=7.0)
        folding.write(3 * phase + 2, took_s=1.0, after_s=0.01)
        folding.write(3 * phase + 3, took_s=1.0, after_s=0.01)
    assert folding.app().phases == 4
    assert abs(folding.app().period_ns / SECOND - 10.02) < 0.001


def test_a_grant_is_for_one_operation_and_the_next_waits() -> None:
    folding = Folding().start()
    until = folding.now + 100 * SECOND
    folding.state.record_io(events.GrantIo(app=A, weight=0.0, until_ns=until))
    folding.see(events.IoRequested(app=A, agent="c1", op=1, bytes=10))
    assert folding.app().in_io and not folding.app().going_on
    folding.state.record_io(events.GrantIo(app=A, weight=1.0, until_ns=until))
    assert folding.app().going_on
    folding.see(events.IoCompleted(app=A, agent="c1", op=1, bytes=10, waited_ns=5, took_ns=5))
    folding.see(events.IoRequested(app=A, agent="c1", op=2, bytes=10))
    assert (folding.app().wanted.weight, folding.app().wanted.version) == (0.0, 3)
    assert not folding.app().going_on and folding.app().waited_ns == 5


def test_repeated_and_late_requests_change_nothing() -> None:
    folding = Folding().start().write(2, took_s=1.0)
    before = folding.state.io
    folding.see(events.IoRequested(app=A, agent="c1", op=1)).see(events.IoRequested(app=A, agent="c1", op=2))
    assert not folding.app().in_io and before == folding.state.io
    folding.see(events.IoRequested(app=A, agent="c1", op=3))
    since = folding.app().requested_ns
    folding.see(events.AggregatorReport(agent="c1", processes=(events.IoUse(app=A, host="c1", waiting=3),)))
    assert folding.app().requested_ns == since


def test_a_request_that_was_lost_comes_with_the_next_report() -> None:
    folding = Folding().start()
    process = events.IoUse(app=A, host="c1", waiting=1, bytes=7)
    folding.see(events.AggregatorReport(agent="c1", processes=(process,)))
    assert folding.app().in_io and folding.app().op_bytes == 7


def test_a_server_map_that_leaves_some_out_counts_it_and_lost_ones_are_not_offered() -> None:
    folding = Folding().start(servers=("c1", "c1/2", "c1/3"))
    folding.state.record_io(events.SetServerMap(app=A, aggregators=("c1", "c1/3")))
    assert folding.app().servers["c1/2"].outs == 1 and folding.app().serving == ("c1", "c1/3")
    folding.see(events.AggregatorLost(app=A, agent="c2", aggregator="c1", reason="killed"))
    assert folding.app().serving == ("c1/3",)
    folding.see(events.AggregatorStarted(app=A, agent="c1", aggregator="c1", host="c1"))
    folding.state.record_io(events.SetServerMap(app=A, aggregators=()))
    assert folding.app().servers["c1/2"].back_ns and folding.app().offered == ("c1", "c1/2", "c1/3")


def test_a_process_that_keeps_to_a_newer_version_gets_a_newer_one() -> None:
    folding = Folding().start()
    process = events.IoUse(app=A, host="c1", version=9)
    folding.see(events.AggregatorReport(agent="c1", processes=(process,)))
    assert folding.app().wanted.version == 10


ids, hosts = st.sampled_from([A, B, "x"]), st.sampled_from(["c1", "c2"])
numbers = st.integers(-(2**62), 2**62)
some_events = st.one_of(
    st.builds(events.IoApplicationStarted, app=ids, agent=hosts, host=hosts, ranks=numbers),
    st.builds(events.IoApplicationFinished, app=ids, agent=hosts, host=hosts),
    st.builds(events.AggregatorStarted, app=ids, agent=hosts, aggregator=hosts, host=hosts),
    st.builds(events.AggregatorLost, app=ids, agent=hosts, aggregator=hosts),
    st.builds(events.IoRequested, app=ids, agent=hosts, op=numbers, bytes=numbers),
    st.builds(events.IoCompleted, app=ids, agent=hosts, op=numbers, bytes=numbers, took_ns=numbers),
    st.builds(events.ServerMapAdopted, app=ids, agent=hosts, epoch=numbers, aggregators=st.just(("c1",))),
    st.builds(
        events.AggregatorReport,
        agent=hosts,
        servers=st.lists(
            st.builds(
                events.AggregatorUse,
                app=ids,
                aggregator=hosts,
                bytes=numbers,
                busy_ns=numbers,
                writes=numbers,
            )
        ).map(tuple),
        processes=st.lists(
            st.builds(events.IoUse, app=ids, host=hosts, version=numbers, waiting=numbers)
        ).map(tuple),
    ),
    st.builds(events.GrantIo, app=ids, weight=st.floats(0, 10), until_ns=numbers),
    st.builds(events.SetServerMap, app=ids, aggregators=st.lists(hosts).map(tuple)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(some_events, max_size=40))
def test_no_order_of_facts_raises_and_a_snapshot_gives_an_equal_state(items: list[Any]) -> None:
    folding = Folding()
    for item in items:
        if isinstance(item, events.Action):
            folding.state.record_io(item)  # type: ignore[arg-type]
        else:
            folding.see(item, 0.5)
    assert State.restore(folding.state.snapshot()) == folding.state
    for app in folding.state.io.applications.values():
        assert app.hosts and app.period_ns >= 0 and set(app.serving) <= set(app.offered)
        assert not app.going_on or app.in_io
