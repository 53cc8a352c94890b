"""Switches that show certificates: the right ones come in, all others are refused, and a handshake that hangs holds up no other."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority, Issued
from harness import wait_until
from openflow_peer import Peer, Recorder, message
from openflow_square import World
from waystage.events import SwitchRefused
from waystage.interconnect import openflow, openflow_connection
from waystage.interconnect.controller import InterconnectController
from waystage.interconnect.openflow import Access, AccessError, OpenFlowServer
from waystage.interconnect.openflow_access import Gate, Tls

BOUND: dict[str, int | str] = {"edge1.site": 1, "edge2.site": "0x2"}


class Site(Authority):
    """An authority, and what a controller and switches make of its certificates."""

    def access(self, switches: dict[str, int | str] | None = None) -> Access:
        own = self.issue("controller.site")
        return Access(tls=Tls(ca=self.ca, certificate=own.certificate, key=own.key, switches=switches or {}))

    def client(self, shown: Issued | None, trusted: str | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(trusted or self.ca)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def foreign(tmp_path: Path) -> Site:
    return Site(tmp_path / "foreign")


@pytest.fixture
def server(site: Site, seen: Recorder) -> Iterator[OpenFlowServer]:
    server = OpenFlowServer(seen, ("127.0.0.1", 0), access=site.access(BOUND))
    server.start()
    yield server
    server.stop()


def refused(make: Callable[[], Peer]) -> bool:
    """Whether the peer gets no channel: its handshake fails, or the channel is closed before any answer."""
    with contextlib.suppress(OSError), make() as peer:
        peer.say_hello(1)
        peer.await_request(18)
        return False
    return True


def test_a_switch_with_its_certificate_comes_in_and_both_directions_flow_at_once(
    server: OpenFlowServer, seen: Recorder, site: Site
) -> None:
    with Peer(server.port, tls=site.client(site.issue("edge1.site"))) as switch:
        switch.come_up(1)
        wait_until(lambda: 1 in seen.up, what="the switch")
        frame = bytes(range(256)) * 4
        status = message(4, 12, bytes(8) + (5).to_bytes(4, "big") + bytes(60))
        switch.socket.sendall(status)
        threads = [
            threading.Thread(target=lambda: [server.packet_out(1, 5, frame) for _ in range(200)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        match = struct.pack("!HHII4x", 1, 12, 0x80000004, 5)
        packet = message(4, 10, struct.pack("!IHBBQ", 0xFFFFFFFF, 60, 1, 0, 5) + match + b"\0\0" + frame)
        got = 0
        for _ in range(300):
            switch.socket.sendall(packet)
            while got < 600 and switch.next_message()[0] == 13:
                got += 1
                if got % 2:
                    break
        while got < 600:
            kind, _, body = switch.next_message()
            if kind == 13:
                assert body.endswith(frame)
                got += 1
        for thread in threads:
            thread.join()
        wait_until(lambda: len(seen.packets) == 300, what="every packet")
        assert set(seen.packets) == {(1, 5, frame)}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_is_no_switch_of_the_site_gets_no_channel(
    server: OpenFlowServer,
    seen: Recorder,
    site: Site,
    foreign: Site,
    caplog: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
) -> None:
    def peer(shown: Issued | None) -> Callable[[], Peer]:
        context = site.client(shown)
        context.maximum_version = version
        return lambda: Peer(server.port, tls=context)

    own = foreign.issue("edge1.site")
    assert refused(peer(own)), "a certificate of another authority"
    assert refused(peer(None)), "no certificate"
    assert refused(lambda: Peer(server.port)), "no TLS"
    assert refused(peer(site.issue("printer.site"))), "a name that is no switch's"
    assert not seen.up
    for words in (
        "its certificate is not accepted:",
        "it showed no certificate",
        "point the switch at ssl:, not tcp:",
    ):
        wait_until(lambda words=words: words in caplog.text, what=words)
    assert not refused(peer(site.issue("edge1.site"))), "and its own comes in"


def test_a_certificate_speaks_for_its_own_datapath_id_only(
    server: OpenFlowServer, seen: Recorder, site: Site
) -> None:
    edge2 = site.client(site.issue("edge2.site"))
    with Peer(server.port, tls=edge2) as forger:
        forger.say_hello(1)
        with pytest.raises(OSError):
            forger.await_request(18)
    assert seen.refused == [(1, "edge2.site", "its certificate 'edge2.site' belongs to datapath id 0x2")]
    with Peer(server.port, tls=edge2) as switch:
        switch.come_up(2)
        wait_until(lambda: 2 in seen.up, what="the switch under its own id")


def test_a_handshake_that_hangs_does_not_hold_up_others_and_ends(
    server: OpenFlowServer, seen: Recorder, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge1 = site.client(site.issue("edge1.site"))
    hanging = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for sock in hanging[:10]:
        sock.sendall(bytes.fromhex("1603010200010001fc0303"))  # a ClientHello that stops
    with Peer(server.port, tls=edge1) as switch:
        switch.come_up(1)
        wait_until(lambda: 1 in seen.up, what="the switch")
    for sock in hanging:
        sock.close()
    monkeypatch.setattr(openflow_connection, "IDENTIFY_S", 0.3)
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        late.settimeout(60)
        late.sendall(bytes.fromhex("1603010200010001fc0303"))
        with contextlib.suppress(ConnectionError):
            while late.recv(4096):
                pass


def test_a_handshake_of_many_bytes_ends(server: OpenFlowServer, seen: Recorder) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionError):
            # Fragments of one handshake message of 16 MiB.
            stranger.sendall(b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(0x4000 - 4))
            for _ in range(64):
                stranger.sendall(b"\x16\x03\x01\x40\x00" + bytes(0x4000))
            while stranger.recv(4096):
                pass
    assert not seen.up


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tls, _: Tls(ca=tls.key, certificate=tls.certificate, key=tls.key), "holds no certificate"),
        (
            lambda tls, _: Tls(ca=tls.ca, certificate=tls.certificate, key=tls.ca),
            "are no certificate and its key",
        ),
        (lambda tls, folder: Tls(ca=tls.ca, certificate=str(folder), key=tls.key), "cannot read"),
        (
            lambda tls, _: Tls(ca=tls.ca, certificate=tls.certificate, key=tls.key, switches={"a": "edge"}),
            "no datapath id",
        ),
        (
            lambda tls, _: Tls(ca=tls.ca, certificate=tls.certificate, key=tls.key, switches={"a": 1 << 64}),
            "no datapath id",
        ),
    ],
)
def test_a_wrong_configuration_is_named(
    site: Site, tmp_path: Path, change: Callable[[Tls, Path], Tls], words: str
) -> None:
    tls = site.access().tls
    assert tls is not None
    with pytest.raises(AccessError, match=words):
        Gate(Access(tls=change(tls, tmp_path)))


@pytest.mark.lab
def test_open_vswitch_connects_by_ssl_and_a_false_switch_does_not_displace_it(
    ovs: Any, site: Site, foreign: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow, "PROBE_S", 60.0)  # a busy machine may answer late
    events: list[Any] = []
    controller = InterconnectController(
        events.append, ("127.0.0.1", 0), access=site.access({"edge1.site": 1, "edge2.site": 2})
    )
    with ovs.within():
        controller.start()
    try:
        port = controller.port

        def connect(switch: str, shown: Issued, ca: str) -> None:
            # One Open vSwitch has one certificate: the switches of this test show theirs one after the other.
            ovs.vsctl("set-ssl", shown.key, shown.certificate, ca)
            ovs.vsctl("set-controller", switch, f"ssl:127.0.0.1:{port}")
            ovs.vsctl("set", "controller", switch, "max_backoff=1000", "connection_mode=out-of-band")

        ovs.add_switch("edge1", 1)
        connect("edge1", site.issue("edge1.site"), site.ca)
        wait_until(lambda: 1 in controller._server.connected(), what="the switch with its certificate")
        before = controller._server._switches[1]

        with ovs.within():
            peers = [
                lambda: Peer(port, tls=site.client(foreign.issue("edge1.site"))),
                lambda: Peer(port, tls=site.client(None)),
                lambda: Peer(port),
                lambda: Peer(port, tls=site.client(site.issue("edge2.site"))),  # claims to be 1
                lambda: Peer(
                    port, tls=site.client(site.issue("edge1.site"))
                ),  # a stolen one, beside the live switch
            ]
            for peer in peers:
                assert refused(peer)
        wait_until(lambda: sum(isinstance(e, SwitchRefused) for e in events) == 2, what="both reports")
        told = [event for event in events if isinstance(event, SwitchRefused)]
        assert [event.certificate for event in told] == ["edge2.site", "edge1.site"]
        assert "belongs to datapath id 0x2" in told[0].reason
        assert "and answers" in told[1].reason
        assert controller._server._switches == {1: before}

        ovs.add_switch("edge2", 9)
        connect("edge2", site.issue("edge2.site"), site.ca)
        wait_until(lambda: sum(isinstance(e, SwitchRefused) for e in events) == 3, what="a false id's report")
        assert 9 not in controller._server.connected()
    finally:
        controller.stop()


@pytest.mark.lab
@pytest.mark.parametrize("wrong", ["the switch's", "the controller's"])
def test_open_vswitch_with_a_foreign_authority_is_not_connected(
    ovs: Any, site: Site, foreign: Site, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Recorder()
    server = OpenFlowServer(seen, ("127.0.0.1", 0), access=site.access())
    with ovs.within():
        server.start()
    try:
        shown = (foreign if wrong == "the switch's" else site).issue("edge1.site")
        ca = foreign.ca if wrong == "the controller's" else site.ca
        ovs.add_switch("edge1", 1)
        ovs.vsctl("set-ssl", shown.key, shown.certificate, ca)
        ovs.vsctl("set-controller", "edge1", f"ssl:127.0.0.1:{server.port}")
        wait_until(lambda: "the connection from 127.0.0.1" in caplog.text, what="the refusal")
        assert not seen.up
    finally:
        server.stop()


@pytest.mark.lab
def test_a_live_open_vswitch_without_certificates_is_not_displaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openflow, "PROBE_S", 60.0)
    controller = world.start(None)
    world.ovs.add_switch("edge1", 1)
    world.ovs.connect("edge1", port=controller.port)
    wait_until(lambda: 1 in controller._server.connected(), what="the switch")
    before = controller._server._switches[1]
    with world.ovs.within():
        for _ in range(3):
            assert refused(lambda: Peer(controller.port))
    assert world.await_event(SwitchRefused).switch == "s1"
    assert controller._server._switches == {1: before}


class DeadRelay:
    """Carries one connection to the server until it falls silent, without closing anything."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._server = socket.create_connection(("127.0.0.1", port))
        self._switch: socket.socket | None = None
        self._dead = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def die(self) -> None:
        self._dead.set()

    def close(self) -> None:
        self.die()
        for sock in (self._listener, self._server, self._switch):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            self._switch, _ = self._listener.accept()
            for ends in ((self._switch, self._server), (self._server, self._switch)):
                self._threads.append(threading.Thread(target=self._carry, args=ends))
                self._threads[-1].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._dead.is_set() and (data := source.recv(65536)):
                if not self._dead.is_set():
                    target.sendall(data)


@pytest.mark.lab
def test_an_open_vswitch_whose_connection_died_in_silence_is_back_before_the_silence_is_noticed(
    ovs: Any,
) -> None:
    seen = Recorder()
    server = OpenFlowServer(seen, ("127.0.0.1", 0))
    with ovs.within():
        server.start()
        relay = DeadRelay(server.port)
    try:
        ovs.add_switch("edge1", 1)
        ovs.connect("edge1", port=relay.port)
        wait_until(lambda: 1 in seen.up, what="the switch through the relay")
        dead = server._switches[1]
        relay.die()
        seen.up.clear()
        ovs.connect("edge1", port=server.port)
        wait_until(lambda: 1 in seen.up, what="its return")
        assert server._switches[1] is not dead
        assert seen.down == [1] and not seen.refused
    finally:
        relay.close()
        server.stop()
