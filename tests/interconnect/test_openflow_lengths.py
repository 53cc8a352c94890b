"""Every length in what a switch sends: a wrong one is an error, never a loop and never a read beyond its bounds."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from waystage.interconnect import openflow_entries as entries
from waystage.interconnect import openflow_messages as messages
from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_errors import MessageError

OXM = struct.pack("!II", 0x80000004, 3)  # in_port=3
MATCH = struct.pack("!HH", 1, 12) + OXM + bytes(4)
OUTPUT = struct.pack("!HHIH6x", 0, 16, 3, 0)
SET_FIELD = struct.pack("!HHI", 25, 16, 0x80000606) + bytes(6) + bytes(2)
APPLY = struct.pack("!HH4x", 4, 40) + OUTPUT + SET_FIELD
GOTO = struct.pack("!HHB3x", 1, 8, 3)
METADATA = struct.pack("!HH4xQQ", 2, 24, 1, 1)
FLOW = struct.pack("!HBx8xH10xQQQ", 48 + 16 + 40 + 8 + 24, 0, 1, 2, 3, 4) + MATCH + APPLY + GOTO + METADATA
BUCKET = struct.pack("!HHII4x", 32, 0, 1, 1) + OUTPUT
GROUP = struct.pack("!HBxI", 40, 3, 7) + BUCKET
PORT_14 = struct.pack("!IH34x", 1, 72) + struct.pack("!HH28x", 0, 32)
PORT_COUNT_14 = struct.pack("!H78x", 80)
HELLO = struct.pack("!HHI", 1, 8, 0x30)
PACKET_IN = struct.pack("!IHBBQ", 1, 60, 0, 0, 0) + MATCH + bytes(2) + bytes(60)


@dataclass(frozen=True)
class Length:
    """A length of `size` bytes at `at`; `may_be` are other values that also make sense there."""

    read: Callable[[bytes], Any]
    data: bytes
    at: int
    size: int = 2
    may_be: tuple[int, ...] = ()


def port_counts(data: bytes) -> Any:
    return wire.port_counts(5, data)


def ports(data: bytes) -> Any:
    return messages.ports(5, data)


def hello(data: bytes) -> Any:
    return messages.common_version(5, data)


LENGTHS = {
    "flow entry": Length(entries.rules, FLOW, 0),
    "its match": Length(entries.rules, FLOW, 50),
    "match field": Length(entries.rules, FLOW, 55, 1),
    "apply-actions": Length(
        entries.rules, FLOW, 66, may_be=(8, 24, 48, 72)
    ),  # others follow, or belong to it
    "output": Length(entries.rules, FLOW, 74),
    "set-field": Length(entries.rules, FLOW, 90),
    "the field that is set": Length(entries.rules, FLOW, 95, 1),
    "goto": Length(entries.rules, FLOW, 106),
    "write-metadata": Length(entries.rules, FLOW, 114),
    "flow counter": Length(wire.flow_counts, FLOW, 0),
    "its match, in counters": Length(wire.flow_counts, FLOW, 50, may_be=tuple(range(89))),
    "group": Length(entries.groups, GROUP, 0, may_be=(8,)),
    "bucket": Length(entries.groups, GROUP, 8),
    "output of a bucket": Length(entries.groups, GROUP, 26),
    "port": Length(ports, PORT_14, 4),
    "port's property": Length(ports, PORT_14, 42),
    "port's counters": Length(port_counts, PORT_COUNT_14, 0),
    "hello element": Length(hello, HELLO, 2, may_be=(4, 5, 6, 7)),
    "match of a packet": Length(messages.packet_in, PACKET_IN, 18, may_be=(4,)),
}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_wrong_length_is_an_error(length: Length) -> None:
    length.read(length.data)
    end = length.at + length.size
    true = int.from_bytes(length.data[length.at : end], "big")
    wrong = {*range(300), 0x7FFF, 0xFFF8, 0xFFFF} - {true, *length.may_be}
    for value in sorted(v for v in wrong if v < 1 << 8 * length.size):
        with pytest.raises(MessageError):
            length.read(length.data[: length.at] + value.to_bytes(length.size, "big") + length.data[end:])


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
def test_what_is_cut_short_is_an_error_or_less(length: Length) -> None:
    for end in range(1, len(length.data)):
        try:
            length.read(length.data[:end])
        except MessageError:
            continue
        assert length.read is messages.packet_in and end >= 34, f"cut at {end}"


@pytest.mark.parametrize("kind", ["match field", "instruction"])
def test_what_may_be_there_once_is_not_there_twice(kind: str) -> None:
    if kind == "match field":
        rest = struct.pack("!HH", 1, 20) + OXM * 2 + bytes(4)
    else:
        rest = MATCH + GOTO * 2
    entry = struct.pack("!HBx8xH10xQQQ", 48 + len(rest), 0, 1, 2, 3, 4) + rest
    with pytest.raises(MessageError, match=r"two|twice"):
        entries.rules(entry)


def test_kinds_that_are_not_used_are_left_out_of_what_is_read() -> None:
    foreign = struct.pack("!HHIII", 0xFFFF, 16, 0x2320, 7, 0)
    apply = struct.pack("!HH4x", 4, 8 + 16 + 16) + foreign + OUTPUT
    rest = MATCH + apply + struct.pack("!HH4x", 6, 8)
    entry = struct.pack("!HBx8xH10xQQQ", 48 + len(rest), 0, 1, 2, 3, 4) + rest
    (rule,) = entries.rules(entry)
    assert [type(step).__name__ for step in rule.steps] == ["Output"]
    select = 1
    assert entries.groups(struct.pack("!HBxI", 8 + 5, select, 7) + b"other") == [entries.Group(group_id=7)]
