"""OpenFlow messages with wrong lengths at every level, fed to connections at every stage of their life.

Each message is answered, skipped or refused with the error that is promised; none takes more than 10 ms of
processor time; memory stays flat. Messages are built by the standard's layouts, and any of their lengths may be
wrong; a tenth is damaged afterwards, and a tenth is random. `make fuzz` feeds a million ($WAYSTAGE_FUZZ_EXAMPLES
times 50), `make test` 5,000.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waystage.interconnect import arp, lldp, openflow_entries
from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_channel import PlainChannel
from waystage.interconnect.openflow_connection import Connection, Refused
from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.openflow_messages import HEADER, PortState

log = logging.getLogger(__name__)

SEEDS = 10
MESSAGES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100")) * 50 // SEEDS
LIMIT_S = 0.010
GROWTH_LIMIT = 64 << 20
PER_CONNECTION = 100
LARGEST = 0xFFFF
ODD_LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 24, 32, 40, 48, 56, 64, 0xFF, 0x7FFF, 0xFFF8, 0xFFFF)
OURS = (0x57 << 56, 0xFF << 56)


class Sink(PlainChannel):
    """A channel without a socket. It remembers under which ids something was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []  # transaction id, type of a multipart request or -1

    def send(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            _, kind, length, xid = HEADER.unpack_from(data, at)
            if kind in (18, 20):
                self.asked.append((xid, int.from_bytes(data[at + 8 : at + 10], "big") if kind == 18 else -1))
            at += length

    def shut(self) -> None:
        pass


class Asker:
    """A listener that asks for all that the controller asks for, and reads packets as it does."""

    def admit(self, connection: Connection) -> None:
        pass

    def connection_ready(self, connection: Connection) -> None:
        version = connection.version
        flows, groups = wire.held_requests(version, *OURS)
        connection.request(flows, lambda part: openflow_entries.rules(part, OURS))
        connection.request(groups, openflow_entries.groups)
        connection.request(wire.flow_counts_request(version, *OURS), wire.flow_counts)
        connection.request(wire.port_counts_request(version), lambda part: wire.port_counts(version, part))
        xids = connection.next_xids(3)
        connection.batch(wire.with_xid(wire.barrier(version), xids[-1]), xids)

    def connection_lost(self, connection: Connection, why: str) -> None:
        pass

    def port_changed(self, connection: Connection, port: int, state: PortState | None) -> None:
        pass

    def packet_in(self, connection: Connection, port: int, data: bytes) -> None:
        arp.parse(data)
        lldp.parse(data, b"a key of a test")


class Builder:
    """Messages by the standard's layouts. `wrong` is the chance that a length is not the true one."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.wrong = 0.0

    def length(self, true: int) -> int:
        if self.rng.random() >= self.wrong:
            return min(true, LARGEST)
        near = true + self.rng.choice((-8, -4, -1, 1, 4, 8))
        return self.rng.choice((*ODD_LENGTHS, max(0, min(LARGEST, near))))

    def noise(self, most: int) -> bytes:
        return self.rng.randbytes(self.rng.randint(0, most))

    def several(self, make: Callable[[], bytes], most: int = 4) -> bytes:
        """A few entries; now and then the same one as often as a message holds it."""
        if self.rng.random() < 0.02:
            entry = make()
            return entry * ((LARGEST - 64) // max(1, len(entry)))
        return b"".join(make() for _ in range(self.rng.randint(0, most)))

    def message(self, version: int, kind: int, xid: int, body: bytes) -> bytes:
        return HEADER.pack(version, kind, self.length(HEADER.size + len(body)), xid) + body

    def oxm(self) -> bytes:
        rng = self.rng
        sizes = {
            0: 4,
            2: 8,
            3: 6,
            4: 6,
            5: 2,
            6: 2,
            7: 1,
            8: 1,
            10: 1,
            13: 2,
            14: 2,
            15: 2,
            16: 2,
            11: 4,
            26: 16,
        }
        number = rng.choice((*sizes, rng.randint(0, 127)))
        masked = rng.random() < 0.2
        value = rng.randbytes(sizes.get(number, rng.randint(0, 8)) * (1 + masked))
        cls = rng.choice((0x8000, 0x8000, 0x8000, 0x8000, 0, 1, 0x8001, 0xFFFF))
        head = cls << 16 | number << 9 | masked << 8 | self.length(len(value)) & 0xFF
        return head.to_bytes(4, "big") + value

    def match(self) -> bytes:
        fields = self.several(self.oxm, 5)
        size = self.length(4 + len(fields))
        kind = self.rng.choice((1, 1, 1, 1, 0, 0xFFFF)) if self.wrong else 1
        return (struct.pack("!HH", kind, size) + fields).ljust((4 + len(fields) + 7) & ~7, b"\0")

    def action(self) -> bytes:
        kind = self.rng.choice((0, 17, 18, 22, 25, 25, 11, 21, 23, 0xFFFF))
        body = {0: 12, 25: 0}.get(kind, 4)
        data = self.oxm() if kind == 25 else self.rng.randbytes(body)
        size = (4 + len(data) + 7) & ~7
        return (struct.pack("!HH", kind, self.length(size)) + data).ljust(size, b"\0")

    def instruction(self) -> bytes:
        kind = self.rng.choice((1, 2, 3, 4, 4, 4, 5, 6, 0xFFFF))
        body = self.rng.randbytes(20) if kind == 2 else self.rng.randbytes(4)
        if kind in (3, 4, 5):
            body = bytes(4) + self.several(self.action)
        return struct.pack("!HH", kind, self.length(4 + len(body))) + body

    def flow(self) -> bytes:
        rest = self.match() + self.several(self.instruction, 3)
        cookie = OURS[0] | self.rng.randrange(1 << 32) if self.rng.random() < 0.9 else 7
        head = struct.pack("!HBx8xH10xQQQ", self.length(48 + len(rest)), 1, 2, cookie, 3, 4)
        return head + rest

    def bucket(self) -> bytes:
        actions = self.several(self.action)
        return struct.pack("!HHII4x", self.length(16 + len(actions)), 1, 2, 3) + actions

    def group(self) -> bytes:
        buckets = self.several(self.bucket)
        kind = self.rng.choice((0, 1, 2, 3, 9))
        return (
            struct.pack("!HBxI", self.length(8 + len(buckets)), kind, self.rng.randrange(1 << 32)) + buckets
        )

    def port_property(self) -> bytes:
        size = self.rng.choice((8, 32, 32, 40))
        return struct.pack("!HH", self.rng.choice((0, 0, 1, 0xFFFF)), self.length(size)) + bytes(size - 4)

    def port(self, version: int) -> bytes:
        number = self.rng.randrange(1, 60)
        if version < 5:
            return number.to_bytes(4, "big") + self.rng.randbytes(60)
        rest = self.several(self.port_property, 3)
        return struct.pack("!IH", number, self.length(40 + len(rest))) + self.rng.randbytes(34) + rest

    def port_count(self, version: int) -> bytes:
        if version < 5:
            return self.rng.randbytes(112)
        return struct.pack("!H", self.length(80)) + self.rng.randbytes(78)

    def part(self, version: int, kind: int) -> bytes:
        makers: dict[int, Callable[[], bytes]] = {
            1: self.flow,
            4: lambda: self.port_count(version),
            7: self.group,
            13: lambda: self.port(version),
        }
        return self.several(makers.get(kind, lambda: self.noise(64)))

    def frame(self) -> bytes:
        kind = self.rng.choice((b"\x88\xcc", b"\x08\x06", b"\x08\x00", b"\x81\x00"))
        if kind == b"\x88\xcc" and self.rng.random() < 0.5:
            return lldp.build(dpid=1, port=2, name="edge1", key=b"a key of a test")
        tlvs = b"".join(
            (k << 9 | self.length(size) & 0x1FF).to_bytes(2, "big") + self.rng.randbytes(size)
            for k, size in ((1, 7), (2, 7), (3, 2), (5, 4), (8, 12), (127, 16), (0, 0))
        )
        return self.rng.randbytes(12) + kind + tlvs

    def hello(self) -> bytes:
        element = lambda: struct.pack("!HHI", self.rng.choice((1, 1, 2)), self.length(8), 0x32)  # noqa: E731
        return self.several(element, 3)

    def next_message(self, version: int, asked: list[tuple[int, int]]) -> bytes:
        """One message of a switch, most likely one that was asked for."""
        rng = self.rng
        self.wrong = rng.choice((0.0, 0.0, 0.02, 0.1, 0.5))
        roll = rng.random()
        if asked and roll < 0.55:
            xid, kind = rng.choice(asked)
            if kind < 0:
                return self.message(version, rng.choice((1, 21)), xid, self.noise(12))
            head = struct.pack("!HH4x", kind, rng.choice((0, 1, 1)))
            return self.message(version, 19, xid, head + self.part(version, kind)[: LARGEST - 16])
        if roll < 0.7:
            body = struct.pack("!IHBBQ", 0xFFFFFFFF, 60, 1, 0, 5) + self.match() + b"\0\0" + self.frame()
            return self.message(version, 10, 0, body[: LARGEST - 8])
        if roll < 0.75:
            body = struct.pack("!B7x", rng.randint(0, 3)) + self.port(version)
            return self.message(version, 12, 0, body[: LARGEST - 8])
        if roll < 0.78:
            return self.message(version, rng.choice((2, 3)), 5, self.noise(40))
        if roll < 0.82:
            return self.message(version, 0, 1, self.hello()[: LARGEST - 8])
        if roll < 0.85:
            return self.message(version, 6, 1, struct.pack("!QIBB2xI4x", 7, 0, 254, rng.choice((0, 0, 1)), 0))
        if roll < 0.93:
            kind = rng.randint(0, 40)
            multipart = struct.pack("!HH4x", rng.randint(0, 20), 1) if kind == 19 else b""
            return self.message(
                rng.choice((1, 2, 3, version, version, 6, 255)), kind, 3, multipart + self.noise(300)
            )
        return self.noise(200)

    def damaged(self, message: bytes) -> bytes:
        data = bytearray(message)
        for _ in range(self.rng.randint(1, 4)):
            if data:
                data[self.rng.randrange(len(data))] = self.rng.choice((0, 1, 4, 8, 0x7F, 0x80, 0xFF))
        return bytes(data)


def connection_at(stage: int, version: int) -> tuple[Connection, Sink]:
    """A new one (0), one that has agreed on a version (1), one that is identified (2), one that is ready (3)."""
    sink = Sink()
    connection = Connection(sink, "192.0.2.1:1", Asker())
    steps = (
        HEADER.pack(version, 0, 8, 1),
        HEADER.pack(version, 6, 32, 1) + struct.pack("!QIBB2xI4x", 7, 0, 254, 0, 0),
    )
    for step in steps[:stage]:
        connection.take_all(bytearray(step))
    if stage == 3:
        connection.take_all(
            bytearray(HEADER.pack(version, 19, 16, sink.asked[0][0]) + struct.pack("!HH4x", 13, 0))
        )
        assert len(sink.asked) == 6, "all was asked for"
    return connection, sink


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seconds(connection: Connection, message: bytes, outcomes: Counter[str]) -> float:
    """Processor time of one message. Any error but the promised two fails the test."""
    buffer = bytearray(message)
    begun = time.thread_time()
    try:
        connection.take_all(buffer)
    except (MessageError, Refused):
        outcomes["refused"] += 1
    else:
        outcomes["waits for more" if buffer else "taken"] += 1
    return time.thread_time() - begun


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """What other tests made is not this one's to search."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.usefixtures("own_garbage")
def test_no_message_takes_long_or_leaves_anything_behind(seed: int) -> None:
    rng = random.Random(seed)
    builder = Builder(rng)
    outcomes: Counter[str] = Counter()
    slowest, settled, second_looks = 0.0, 0, 0
    fed = 0
    while fed < MESSAGES:
        stage, version = rng.choice((0, 1, 2, 3, 3, 3, 3, 3)), rng.choice((4, 5))
        connection, sink = connection_at(stage, version)
        for _ in range(min(PER_CONNECTION, MESSAGES - fed)):
            message = builder.next_message(version, sink.asked)
            if rng.random() < 0.1:
                message = builder.damaged(message)
            refused = outcomes["refused"]
            took = seconds(connection, message, outcomes)
            fed += 1
            second_looks += took >= LIMIT_S
            for _ in range(20):
                if took < LIMIT_S:
                    break
                # The cost of a message is constant; a second measurement tells a busy machine from a slow parser.
                time.sleep(0.1)
                fresh, _ = connection_at(stage, version)
                took = seconds(fresh, message, Counter())
            assert took < LIMIT_S, f"{took * 1000:.1f} ms for {message[:64].hex()}... of {len(message)} bytes"
            slowest = max(slowest, took)
            if outcomes["refused"] > refused:
                break
        if fed >= MESSAGES // 5 and not settled:
            settled = resident()
    grown = resident() - settled
    log.info(
        "seed %d: %d messages, slowest %.2f ms, %d looked at again", seed, fed, slowest * 1000, second_looks
    )
    log.info("%d MiB grown, %s", grown >> 20, dict(outcomes))
    assert grown < GROWTH_LIMIT, f"{fed} messages left {grown >> 20} MiB behind"
    assert min(outcomes["taken"], outcomes["refused"]) > fed // 20, outcomes
