"""Counters to link use: growth only, each class once, whichever end of a cable counts it."""

from __future__ import annotations

from waystage.events import LinkUse, PortUse, UsePart
from waystage.interconnect import cookies
from waystage.interconnect.counters import Counters, together
from waystage.interconnect.generate import paper
from waystage.interconnect.openflow_wire import FlowCount, PortCount

TOPOLOGY = paper()
CABLE = TOPOLOGY.switch_links[0]
HOST, (EDGE, HOST_PORT) = next(iter(TOPOLOGY.attachment.items()))
S = 10**9


def flow(kind: cookies.Kind, port: int, count: int, key: bytes = b"a", traffic: str = "mpi") -> FlowCount:
    cookie = cookies.encode(cookies.Cookie(kind=kind, port=port, traffic=traffic))  # type: ignore[arg-type]
    return FlowCount(key, cookie, count // 100, count)


def port(number: int, rx: int = 0, tx: int = 0, dropped: int = 0) -> PortCount:
    return PortCount(number, rx // 100, tx // 100, rx, tx, 0, dropped)


def use(event: LinkUse | UsePart | None, node: str, number: int) -> PortUse:
    assert event is not None
    return next(u for u in event.ports if (u.node, u.port) == (node, number))


def test_what_was_counted_before_the_first_sample_belongs_to_no_interval() -> None:
    counters = Counters(TOPOLOGY)
    before = {CABLE.a: ([flow("tx", CABLE.a_port, 5000)], [port(CABLE.a_port, tx=9000)])}
    assert counters.sample(1 * S, before) is None
    now = {CABLE.a: ([flow("tx", CABLE.a_port, 5700)], [port(CABLE.a_port, tx=10000, dropped=3)])}
    event = counters.sample(3 * S, now)
    assert event is not None
    assert event.interval_ns == 2 * S
    assert use(event, CABLE.a, CABLE.a_port) == PortUse(
        node=CABLE.a, port=CABLE.a_port, bytes=1000, packets=10, drops=3, by_class={"mpi": 700}
    )


def test_both_ends_of_a_cable_count_the_same_bytes_once() -> None:
    counters = Counters(TOPOLOGY)
    counters.sample(1 * S, {CABLE.a: ([], []), CABLE.b: ([], [])})
    event = counters.sample(
        2 * S,
        {CABLE.a: ([flow("tx", CABLE.a_port, 800)], []), CABLE.b: ([flow("rx", CABLE.b_port, 700)], [])},
    )
    assert use(event, CABLE.a, CABLE.a_port).by_class == {"mpi": 800}


def test_a_host_sends_what_its_switch_receives() -> None:
    counters = Counters(TOPOLOGY)
    counters.sample(1 * S, {EDGE: ([], [port(HOST_PORT)])})
    event = counters.sample(2 * S, {EDGE: ([], [port(HOST_PORT, rx=600)])})
    assert use(event, HOST, 1).bytes == 600


def test_a_rule_that_is_replaced_or_removed_does_not_count_twice() -> None:
    counters = Counters(TOPOLOGY)
    both = [flow("tx", CABLE.a_port, 500, b"a"), flow("tx", CABLE.a_port, 400, b"b")]
    counters.sample(1 * S, {CABLE.a: (both, [])})
    event = counters.sample(2 * S, {CABLE.a: ([flow("tx", CABLE.a_port, 520, b"a")], [port(CABLE.a_port)])})
    assert use(event, CABLE.a, CABLE.a_port).by_class == {"mpi": 20}
    event = counters.sample(3 * S, {CABLE.a: ([flow("tx", CABLE.a_port, 30, b"a")], [])})
    assert use(event, CABLE.a, CABLE.a_port).by_class == {"mpi": 30}, "a counter that fell was reset"


def test_a_switch_that_does_not_answer_is_left_out_and_caught_up_later() -> None:
    counters = Counters(TOPOLOGY)
    counters.sample(1 * S, {CABLE.a: ([], [port(CABLE.a_port, tx=100)])})
    event = counters.sample(2 * S, {})
    assert event is not None
    assert event.ports == ()
    event = counters.sample(3 * S, {CABLE.a: ([], [port(CABLE.a_port, tx=400)])})
    assert use(event, CABLE.a, CABLE.a_port).bytes == 300


def test_rules_of_others_and_ports_outside_the_topology_count_for_nothing() -> None:
    counters = Counters(TOPOLOGY)
    counters.sample(1 * S, {CABLE.a: ([], [port(99)])})
    stranger = FlowCount(b"x", 0xDEAD, 1, 100)
    event = counters.sample(
        2 * S, {CABLE.a: ([stranger, flow("none", 1, 50), flow("tx", 99, 50)], [port(99, tx=5)])}
    )
    assert event is not None
    assert event.ports == ()


def test_ports_by_which_packets_came_are_those_that_work() -> None:
    counters = Counters(TOPOLOGY)
    assert counters.arrived(CABLE.a, [port(1, rx=500)]) == []
    counters.sample(1 * S, {CABLE.a: ([], [port(CABLE.a_port, rx=500)])})
    assert counters.arrived(CABLE.a, [port(CABLE.a_port, rx=500)]) == []
    assert counters.arrived(CABLE.a, [port(CABLE.a_port, rx=900)]) == [CABLE.a_port]


def test_consecutive_readings_add_up_to_what_is_published_once_a_second() -> None:
    counters = Counters(TOPOLOGY)
    parts = []
    for at, (mpi, tx) in enumerate(((0, 0), (100, 150), (100, 150), (400, 600))):
        read = counters.sample(
            (at + 1) * S // 10,
            {CABLE.a: ([flow("tx", CABLE.a_port, mpi)], [port(CABLE.a_port, tx=tx)])},
        )
        parts += [read] if read else []
    event = together(parts)
    assert (event.interval_ns, event.parts) == (3 * S // 10, tuple(parts))
    whole = use(event, CABLE.a, CABLE.a_port)
    assert (whole.bytes, whole.by_class) == (600, {"mpi": 400})
    assert together(parts[:1]) == LinkUse(interval_ns=S // 10, ports=parts[0].ports)
