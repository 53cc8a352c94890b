"""Connections that are no switches, or not the ones they say: bounded, refused, reported; switches are still served."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from harness import wait_until
from openflow_peer import Peer, Recorder, hello, message
from waystage.interconnect import openflow, openflow_admission, openflow_connection
from waystage.interconnect import openflow_messages as messages
from waystage.interconnect.openflow import Access, AccessError, OpenFlowServer
from waystage.interconnect.openflow_access import Gate, check_listening
from waystage.interconnect.openflow_admission import TELL_EVERY_S, TOLD_AT_MOST, Budget, Told, Waiting
from waystage.interconnect.openflow_connection import Connection
from waystage.interconnect.port_rate import PORTS_KEPT, PortRate


def ended(peer: Peer) -> bool:
    """Whether the server closes the channel; what it still says is read."""
    peer.socket.settimeout(60)
    with contextlib.suppress(ConnectionError):
        while peer.socket.recv(65536):
            pass
    return True


BAD_STARTS = {
    "a hello with an element of no length": struct.pack("!BBHI", 4, 0, 12, 1) + struct.pack("!HH", 1, 0),
    "an element longer than the hello": struct.pack("!BBHI", 4, 0, 16, 1) + struct.pack("!HHI", 1, 800, 0x30),
    "an element shorter than its head": struct.pack("!BBHI", 4, 0, 16, 1) + struct.pack("!HHI", 1, 3, 0x30),
    "a message of no length": struct.pack("!BBHI", 4, 0, 0, 1),
    "a large message": struct.pack("!BBHI", 4, 0, 65535, 1),
    "features before a hello": message(4, 6, bytes(24)),
    "no version that is spoken": hello(bitmap=1 << 1 | 1 << 7),
    "an old version": message(1, 0),
    "features of a wrong size": hello() + message(4, 6, bytes(25)),
    "an auxiliary connection": hello() + message(4, 6, struct.pack("!QIBB2xI4x", 1, 0, 254, 1, 0)),
    "another version than agreed": hello() + message(5, 6, bytes(24)),
    "an error instead of features": hello() + message(4, 1, struct.pack("!HH", 1, 1)),
    "many bytes and no name": hello() + message(4, 30, bytes(40)) * 100,
    "HTTP": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "an unknown version": message(255, 0),
    "a request after a hello": bytes.fromhex("05000008 00000001 0506000c 00000002 ffffffff"),
    "any bytes": bytes(range(256)) * 16,
    "TLS where none is spoken": bytes.fromhex("1603010200010001fc0303") + bytes(64),
}


@pytest.mark.parametrize("start", BAD_STARTS.values(), ids=BAD_STARTS.keys())
def test_a_bad_start_ends_the_connection_and_costs_nothing(
    server: OpenFlowServer, seen: Recorder, start: bytes
) -> None:
    begun_s = time.process_time()
    with Peer(server.port) as stranger:
        stranger.socket.sendall(start)
        assert ended(stranger)
    assert time.process_time() - begun_s < 2.0
    assert not seen.up and not seen.down
    with Peer(server.port) as switch:
        switch.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the next switch")


def test_who_does_not_say_who_it_is_has_little_time(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow_connection, "IDENTIFY_S", 0.3)
    with Peer(server.port) as silent, Peer(server.port) as slow:
        stop = threading.Event()

        def dribble() -> None:
            with contextlib.suppress(OSError):
                for byte in hello() + message(4, 3, bytes(2000)):
                    if stop.wait(0.05):
                        return
                    slow.socket.send(bytes([byte]))

        thread = threading.Thread(target=dribble)
        thread.start()
        assert ended(silent) and ended(slow)
        stop.set()
        thread.join()
    assert not seen.up


def test_a_description_that_never_ends_has_little_time(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow_connection, "DESCRIBE_S", 0.3)
    with Peer(server.port) as peer:
        peer.say_hello(7)
        xid = peer.await_request(18)
        more = message(4, 19, struct.pack("!HH4x", 13, 1), xid)
        with contextlib.suppress(OSError):
            while True:
                peer.socket.sendall(more)
                time.sleep(0.02)
        assert ended(peer)
    assert not seen.up


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [("MAX_PARTS", 3, "3 parts"), ("MAX_ANSWER_BYTES", 200, "parts or"), ("MAX_ENTRIES", 3, "3 entries")],
)
def test_an_answer_without_end_ends_the_connection(
    server: OpenFlowServer,
    seen: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bound: str,
    value: int,
    words: str,
) -> None:
    monkeypatch.setattr(openflow_connection, bound, value)
    entry = struct.pack("!HBx8xH10xQ16xHH4x", 56, 0, 0, 0, 1, 4)
    with Peer(server.port) as peer:
        peer.say_hello(7)
        peer.answer(peer.await_request(18), 13)
        xid = peer.await_request(18)
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                peer.answer(xid, 1, b"" if bound == "MAX_PARTS" else entry, more=True)
        assert ended(peer)
    assert not seen.up
    wait_until(lambda: "its answer has more than" in caplog.text and words in caplog.text, what="the reason")


def test_what_all_switches_hold_together_is_bounded_and_freed_with_them(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_budget", Budget(total=100))
    entry = struct.pack("!HBx8xH10xQ16xHH4x", 56, 0, 0, 0, 1, 4)
    with Peer(server.port) as first:
        first.come_up(1, rules=entry)
        wait_until(lambda: 1 in seen.up, what="the first switch")
        with Peer(server.port) as second:
            with contextlib.suppress(ConnectionError):
                second.come_up(2, rules=entry)
            assert ended(second)
        assert set(seen.up) == {1}
    wait_until(lambda: seen.down == [1], what="its loss")
    with Peer(server.port) as second:
        second.come_up(2, rules=entry)
        wait_until(lambda: 2 in seen.up, what="the second switch")
        assert server._budget.take(44) and not server._budget.take(1)


def test_an_answer_that_is_not_waited_for_holds_no_memory(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(total=200)
    monkeypatch.setattr(server, "_budget", budget)
    entry = struct.pack("!HBx8xH10xQ16xHH4x", 56, 0, 0, 0, 1, 4)

    def count() -> None:
        with pytest.raises(openflow.OpenFlowError):
            server.count(7, 0, 0, timeout_s=0.2)

    with Peer(server.port) as switch:
        switch.come_up(7, rules=entry)
        wait_until(lambda: 7 in seen.up, what="the switch")
        for _ in range(3):
            counting = threading.Thread(target=count)
            counting.start()
            switch.answer(switch.await_request(18), 1, entry, more=True)
            counting.join()
            switch.await_request(18)
        assert budget.take(144) and not budget.take(1), "the rules are kept, the halves of counters are not"
        budget.give(144)
    wait_until(lambda: seen.down == [7], what="its loss")
    assert budget.take(200)


def test_more_ports_than_a_switch_has_end_the_connection(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "MAX_PORTS", 3)
    with Peer(server.port) as peer:
        peer.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
        with contextlib.suppress(ConnectionError):
            for number in range(1, 6):
                port = number.to_bytes(4, "big") + bytes(60)
                peer.socket.sendall(message(4, 12, bytes(8) + port))
        assert ended(peer)
        wait_until(lambda: seen.down == [7], what="its loss")
    wait_until(lambda: "more than 3 ports" in caplog.text, what="the reason")
    assert len(seen.ports) == 3


def test_packets_from_ports_that_a_switch_does_not_have_are_not_looked_at(
    server: OpenFlowServer, seen: Recorder
) -> None:
    def packet(port: int) -> bytes:
        match = struct.pack("!HHII4x", 1, 12, 0x80000004, port)
        return message(4, 10, struct.pack("!IHBBQ", 0xFFFFFFFF, 60, 1, 0, 5) + match + b"\0\0" + bytes(60))

    with Peer(server.port) as peer:
        peer.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
        peer.socket.sendall(message(4, 12, bytes(8) + (5).to_bytes(4, "big") + bytes(60)))
        peer.socket.sendall(packet(6) + packet(5))
        wait_until(lambda: seen.packets, what="a packet")
        assert seen.packets == [(7, 5, bytes(60))]


def test_strangers_in_a_crowd_make_room_and_a_switch_comes_in(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_waiting", Waiting(total=8, per_address=4))
    crowd = [Peer(server.port) for _ in range(40)]
    try:
        with Peer(server.port) as switch:
            switch.come_up(7)
            wait_until(lambda: 7 in seen.up, what="the switch among strangers")
            assert all(ended(peer) for peer in crowd[:36])
            wait_until(lambda: len(server._open) <= 5, what="the end of the others")
    finally:
        for peer in crowd:
            peer.socket.close()


def test_the_oldest_of_the_largest_crowd_makes_room() -> None:
    waiting: Waiting[int] = Waiting(total=5, per_address=3)
    assert [waiting.enter(n, "a") for n in range(4)] == [None, None, None, 0]
    assert [waiting.enter(n, "b") for n in (10, 11)] == [None, None]
    assert waiting.enter(20, "c") == 1, "of the address that has most"
    assert waiting.leave(2) and not waiting.leave(1)
    assert len(waiting) == 4


def test_ports_that_are_pretended_do_not_pile_up() -> None:
    rate = PortRate(2)
    assert all(rate.allows(1, port, 0.0) for port in range(PORTS_KEPT))
    assert not rate.allows(2, 1, 0.5), "no more are counted in this second"
    assert rate.allows(1, 7, 0.5) and not rate.allows(1, 7, 0.6), "those known keep their share"
    assert rate.allows(2, 1, 1.0)
    assert len(rate._windows) == 1


def test_a_repeated_refusal_is_reported_seldom_and_counted() -> None:
    told = Told()
    assert [told.times("a", float(n)) for n in range(3)] == [1, 0, 0]
    assert told.times("a", TELL_EVERY_S) == 3
    assert sum(told.times(f"address {n}", 100.0) for n in range(5000)) == TOLD_AT_MOST


def test_a_second_connection_with_the_id_of_a_live_switch_is_refused_and_reported(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow, "PROBE_S", 60.0)  # a busy machine may answer late
    monkeypatch.setattr(openflow_admission, "TELL_EVERY_S", 600.0)
    with Peer(server.port) as switch:
        switch.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
        for _ in range(3):
            with Peer(server.port) as forger, switch.answering():
                forger.say_hello(7)
                assert ended(forger)
        assert server.connected() == {7: {}}
        assert not seen.down
        assert [dpid for dpid, _, _ in seen.refused] == [7], "told once, not each time"
        assert "that switch is connected from 127.0.0.1:" in seen.refused[0][2]


def test_a_switch_whose_old_connection_is_dead_comes_back_at_once(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow, "PROBE_S", 0.2)
    with Peer(server.port) as dead, Peer(server.port) as back:
        dead.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
        seen.up.clear()
        back.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch's return")
        assert seen.down == [7]
        assert not seen.refused
        assert ended(dead)
        assert set(server.connected()) == {7}
        assert seen.down == [7], "the end of the old connection is not told as the switch's"


def test_of_two_that_come_back_at_once_one_is_believed(
    server: OpenFlowServer, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow, "PROBE_S", 60.0)  # a busy machine may answer late
    with Peer(server.port) as dead, contextlib.ExitStack() as stack:
        dead.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
        holder = server._switches[7]
        monkeypatch.setattr(holder, "is_alive", lambda _: Connection.is_alive(holder, 0.3))
        seen.up.clear()
        both = [stack.enter_context(Peer(server.port)) for _ in range(2)]
        threads = [threading.Thread(target=peer.serve_as, args=(7,)) for peer in both]
        for thread in threads:
            thread.start()
        wait_until(lambda: 7 in seen.up and seen.refused, what="one in, one out")
        assert len(seen.refused) == 1
        assert set(server.connected()) == {7}
        server.stop()
        for thread in threads:
            thread.join()


def test_a_switch_that_the_topology_does_not_have_is_refused(seen: Recorder) -> None:
    server = OpenFlowServer(seen, ("127.0.0.1", 0), known=frozenset({1, 2}))
    server.start()
    try:
        with Peer(server.port) as other, Peer(server.port) as known:
            other.say_hello(3)
            assert ended(other)
            known.come_up(2)
            wait_until(lambda: 2 in seen.up, what="the switch of the topology")
        assert seen.refused == [(3, "", "the switch is not in the topology")]
    finally:
        server.stop()


def test_only_listed_addresses_are_read(seen: Recorder) -> None:
    server = OpenFlowServer(seen, ("0.0.0.0", 0), access=Access(allow=("127.0.0.2", "127.0.1.0/24")))
    server.start()
    try:
        with Peer(server.port, source="127.0.0.1") as other:
            assert ended(other)
        for dpid, source in ((1, "127.0.0.2"), (2, "127.0.1.77")):
            with Peer(server.port, source=source) as switch:
                switch.come_up(dpid)
                wait_until(lambda: len(seen.up) == dpid, what=f"the switch at {source}")  # noqa: B023
    finally:
        server.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "192.0.2.1", "::ffff:0.0.0.0"])
def test_the_network_is_not_listened_to_without_knowing_who_may_connect(host: str) -> None:
    with pytest.raises(
        AccessError, match=r"pretend to be a switch: give certificates .*allow.* 127\.0\.0\.1"
    ):
        check_listening(host, 6653, Access())
    with pytest.raises((AccessError, openflow.OpenFlowError)):
        OpenFlowServer(Recorder(), (host, 0)).start()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_be_listened_to(host: str) -> None:
    check_listening(host, 6653, Access())


@pytest.mark.parametrize(
    ("allow", "words"),
    [
        (("0.0.0.0/0",), "every address"),
        (("0.0.0.0/1", "128.0.0.0/1"), "every address"),
        (("10.0.0.1", "::/0"), "every address"),
        (("::ffff:0:0/96",), "every address"),
        (("10.0.0.1/8",), "host bits"),
        (("edge1.site",), "no address or network"),
    ],
)
def test_a_list_of_addresses_must_be_one(allow: tuple[str, ...], words: str) -> None:
    with pytest.raises(AccessError, match=words):
        check_listening("0.0.0.0", 6653, Access(allow=allow))


def test_an_address_is_known_in_each_of_its_forms() -> None:
    gate = Gate(Access(allow=("192.0.2.0/24", "fe80::/10")))
    assert gate.allows("192.0.2.9") and gate.allows("::ffff:192.0.2.9") and gate.allows("fe80::1%eth0")
    assert not gate.allows("192.0.3.9") and not gate.allows("2001:db8::1")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    from waystage.interconnect.openflow_access import Tls

    tls = Tls(ca=str(tmp_path / "ca.pem"), certificate="c", key="k")
    with pytest.raises(AccessError, match=r"openflow\.tls\.ca: cannot read .*ca\.pem"):
        Gate(Access(tls=tls))


def test_a_listener_takes_the_next_connection_while_others_hang(
    server: OpenFlowServer, seen: Recorder
) -> None:
    hanging = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    with Peer(server.port) as switch:
        switch.come_up(7)
        wait_until(lambda: 7 in seen.up, what="the switch")
    for sock in hanging:
        sock.close()
