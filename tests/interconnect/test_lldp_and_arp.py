"""Frames from anywhere: what is ours round-trips, what is forged or broken is nothing, nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.interconnect import arp, lldp

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LABEL, ASKER = 0x0257_0001_0203, 0x0242_0A00_0001


def entry(kind: int, value: bytes) -> bytes:
    return (kind << 9 | len(value)).to_bytes(2, "big") + value


def lldp_frame(*entries: bytes, source: bytes = bytes.fromhex("02420a000001")) -> bytes:
    mandatory = entry(1, b"\x04" + b"\x02\x99\x99\x99\x99\x99") + entry(2, b"\x05eth0") + entry(3, b"\0\x78")
    return bytes.fromhex("0180c200000e") + source + b"\x88\xcc" + mandatory + b"".join(entries) + b"\0\0"


def request(sender_ip: str = "10.0.0.1", target: str = "10.0.0.9", **changed: bytes) -> bytes:
    parts = {
        "to": b"\xff" * 6,
        "source": ASKER.to_bytes(6, "big"),
        "ethertype": b"\x08\x06",
        "fixed": bytes.fromhex("0001080006040001"),
        "sender": ASKER.to_bytes(6, "big"),
        "ip": arp.ipv4(sender_ip).to_bytes(4, "big"),
        "unknown": bytes(6),
        "target": arp.ipv4(target).to_bytes(4, "big"),
    } | changed
    return b"".join(parts.values()).ljust(60, b"\0")


@given(dpid=st.integers(1, 2**64 - 1), port=st.integers(1, 0xFEFF), name=st.text(max_size=300))
def test_our_frames_say_which_port_sent_them(dpid: int, port: int, name: str) -> None:
    frame = lldp.build(dpid, port, name, KEY)
    assert lldp.parse(frame, KEY) == lldp.Neighbour(switch=(dpid, port))
    assert lldp.parse(frame, OTHER_KEY) is None, "nobody without the key can announce a switch"


@given(at=st.integers(0, 500), bit=st.integers(0, 7))
def test_a_frame_changed_in_any_bit_never_names_another_port(at: int, bit: int) -> None:
    frame = bytearray(lldp.build(7, 3, "edge1", KEY))
    frame[at % len(frame)] ^= 1 << bit
    said = lldp.parse(bytes(frame), KEY)
    assert said is None or said.switch in (None, (7, 3))


def test_a_host_is_known_by_name_address_and_the_port_it_sends_from() -> None:
    management = entry(8, b"\x05\x01\x0a\x00\x00\x07\x02\0\0\0\x02\0")
    loopback = entry(8, b"\x05\x01\x7f\x00\x00\x01\x02\0\0\0\x02\0")
    said = lldp.parse(lldp_frame(entry(5, b"node-3.cluster"), loopback, management), KEY)
    assert said == lldp.Neighbour(name="node-3.cluster", mac="02:42:0a:00:00:01", ip="10.0.0.7")


@pytest.mark.parametrize("name", [b"", b"\xff\xfe", b"a\nb", b"-x", b"n" * 64, b"a b"])
def test_a_system_name_that_is_no_node_name_is_left_out(name: bytes) -> None:
    said = lldp.parse(lldp_frame(entry(5, name)), KEY)
    assert said is not None
    assert said.name == ""


def test_frames_that_are_not_lldp_or_cut_short_are_nothing() -> None:
    frame = lldp.build(7, 3, "edge1", KEY)
    assert lldp.parse(frame[:20], KEY) is None
    assert lldp.parse(frame[:12] + b"\x08\x00" + frame[14:], KEY) is None
    assert lldp.parse(b"", KEY) is None


@given(st.binary(max_size=200))
def test_no_bytes_make_a_parser_raise(data: bytes) -> None:
    for frame in (data, lldp_frame(data), request()[:14] + data, bytes(12) + b"\x88\xcc" + data):
        lldp.parse(frame, KEY)
        arp.parse(frame)
        arp.Responder().answer(1, 1, frame, 0.0)


@given(mac=st.integers(0, 2**40 - 1), ip=st.integers(1, 2**32 - 1), target=st.integers(1, 2**32 - 1))
def test_the_reply_is_addressed_to_the_asker_and_carries_the_label(mac: int, ip: int, target: int) -> None:
    reply = arp.build_reply(arp.Request(mac=mac, ip=ip, target=target), LABEL)
    assert len(reply) == 60
    assert reply[:6] == mac.to_bytes(6, "big")
    assert reply[6:14] == LABEL.to_bytes(6, "big") + b"\x08\x06"
    assert reply[20:22] == b"\0\x02"
    assert reply[22:32] == LABEL.to_bytes(6, "big") + target.to_bytes(4, "big")
    assert reply[32:42] == mac.to_bytes(6, "big") + ip.to_bytes(4, "big")
    assert arp.parse(reply) is None, "a reply is no request"


def responder() -> arp.Responder:
    made = arp.Responder()
    made.entries = {arp.ipv4("10.0.0.9"): arp.Entry(label=LABEL, dpid=2, port=3)}
    return made


def test_a_known_target_is_answered_and_an_unknown_one_counted() -> None:
    answers = responder()
    reply = answers.answer(1, 1, request(), 0.0)
    assert reply is not None
    assert reply[22:28] == LABEL.to_bytes(6, "big")
    assert answers.answer(1, 1, request(target="10.0.0.8"), 0.0) is None
    assert (answers.counts.answered, answers.counts.unknown) == (1, 1)


@pytest.mark.parametrize(
    "frame",
    [
        request(sender_ip="10.0.0.9"),  # announces itself
        request(fixed=bytes.fromhex("0001080006040002")),  # a reply
        request(fixed=bytes.fromhex("0006080006040001")),  # not Ethernet
        request(sender=bytes.fromhex("02420a0000ff")),  # speaks for another
        request(source=b"\xff" * 6, sender=b"\xff" * 6),  # answering would flood
        request()[:41],
    ],
)
def test_what_is_no_honest_request_is_ignored(frame: bytes) -> None:
    answers = responder()
    assert answers.answer(1, 1, frame, 0.0) is None
    assert answers.counts.ignored == 1


def test_a_host_that_probes_its_own_address_hears_no_conflict_but_another_does() -> None:
    answers, probe = responder(), request(sender_ip="0.0.0.0")
    assert answers.answer(2, 3, probe, 0.0) is None
    assert answers.answer(2, 4, probe, 0.0) is not None


def test_a_port_that_asks_too_often_is_limited_and_others_are_not() -> None:
    answers = responder()
    given = [answers.answer(1, 1, request(), 5.0) for _ in range(arp.REQUESTS_PER_S + 50)]
    assert sum(reply is not None for reply in given) == arp.REQUESTS_PER_S
    assert answers.counts.limited == 50
    assert answers.answer(1, 2, request(), 5.0) is not None
    assert answers.answer(1, 1, request(), 6.0) is not None
