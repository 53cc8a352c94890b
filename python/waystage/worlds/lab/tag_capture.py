"""Tags of packets at a port of the lab's switches, compared with the contents of the messages.

Arrives: packets of programs that write into every byte what it belongs to (shim/tests/tagged.c).
Leaves: how many packets were seen, and how many had another tag than their first byte's message, or none.
Must not know: how packets get tags.

Frames are those of Open MPI's TCP transport: a packet is judged by the message that its first byte belongs to.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from waystage.interconnect.tags import Layout, Tag
from waystage.worlds.lab.errors import LabError

ETH_P_ALL = 0x0003
CLONE_NEWNET = 0x40000000
_RECEIVE_BYTES = 64 << 20
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
_HANDSHAKE = 24
_MAGIC = b"OPAL-TCP-BTL"
_SEND, _PUT_DATA = 1, 2
_DATA_AT = {0x41: 14, 0x42: 32, 0x46: 32}
"""Bytes of pml/ob1's headers before a message's own, by type."""

PRIMITIVES = ("p2p", "bcast", "reduce", "allreduce", "allgather")

Side = tuple[bytes, int]


@dataclass
class _Stream:
    """One direction of a connection. Positions count from its first byte."""

    first: int
    next: int = 0
    waiting: dict[int, bytes] = field(default_factory=dict)
    rank: int = -1
    length: int = 0
    begun: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    marks: list[int | None] = field(default_factory=list)
    """Of each frame, the byte that its message is made of; None for frames without."""
    packets: list[tuple[int, int]] = field(default_factory=list)
    again: int = 0

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self.next == 0:
                self.rank = int.from_bytes(data[4:8], "little") if data[8:20] == _MAGIC else -1
                self.next += _HANDSHAKE
                at += _HANDSHAKE
                continue
            if not self.begun:
                self.starts.append(self.next)
                self.marks.append(None)
            seen = self.next - self.starts[-1]
            if len(self.begun) < 8:
                step = 8 - len(self.begun)
            elif len(self.begun) < 64:
                step = min(64, self.length) - len(self.begun)
            else:
                step = self.length - seen
            part = data[at : at + step]
            if len(self.begun) < 64:
                self.begun += part
            at += len(part)
            self.next += len(part)
            if len(self.begun) == 8:
                count, size = struct.unpack("<HI", self.begun[2:8])
                self.length = 8 + size + (16 * count if self.begun[1] == _PUT_DATA else 0)
            if len(self.begun) >= 8:
                if len(self.begun) == min(64, self.length):
                    self.marks[-1] = self._mark()
                if self.next - self.starts[-1] == self.length:
                    self.begun = bytearray()

    def _mark(self) -> int | None:
        kind, way = self.begun[0], self.begun[1]
        at = 24 if way == _PUT_DATA else 8 + _DATA_AT.get(kind, 1000)
        # Messages of the library's own are no marks.
        if (
            at >= len(self.begun)
            or self.begun[at] & 0x80 == 0
            or self.begun[at] >> 3 & 0xF >= len(PRIMITIVES)
        ):
            return None
        if len(self.begun) < at + 8 or any(byte != self.begun[at] for byte in self.begun[at:]):
            return None
        return self.begun[at]


@dataclass(frozen=True)
class Verdict:
    """`judged` packets carried marked bytes; of these `mistagged` had another tag, `untagged` none. `again` were seen
    before: retransmissions. `lost` were not captured."""

    packets: int
    judged: int
    mistagged: int
    untagged: int
    again: int
    lost: int
    communicators: int
    jobs: frozenset[int]
    examples: tuple[str, ...]


class Capture:
    """Captures what enters the switches through devices; use it as a context manager, in a thread that is in the
    switches' namespace when it is made."""

    def __init__(self, devices: list[str], layout: Layout) -> None:
        self.layout = layout
        self._sockets = []
        for device in devices:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _RECEIVE_BYTES)
            opened.bind((device, ETH_P_ALL))
            opened.settimeout(0.2)
            self._sockets.append(opened)
        self._streams: dict[tuple[Side, Side], _Stream] = {}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(s,), daemon=True) for s in self._sockets]
        self._lock = threading.Lock()

    def __enter__(self) -> Capture:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, opened: socket.socket) -> None:
        while True:
            try:
                frame, source = opened.recvfrom(65536)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            if source[2] == socket.PACKET_OUTGOING or len(frame) < 54 or frame[12:14] != b"\x08\x00":
                continue
            header = (frame[14] & 0xF) * 4
            tcp = 14 + header
            if frame[23] != 6:
                continue
            end = 14 + int.from_bytes(frame[16:18], "big")
            sport, dport, seq = struct.unpack("!HHI", frame[tcp : tcp + 8])
            payload = frame[tcp + (frame[tcp + 12] >> 4) * 4 : end]
            key = ((frame[26:30], sport), (frame[30:34], dport))
            with self._lock:
                if frame[tcp + 13] & 0x02:
                    self._streams[key] = _Stream(seq + 1 & 0xFFFFFFFF)
                elif payload and key in self._streams:
                    self._take(self._streams[key], seq, payload, int.from_bytes(frame[:6], "big"))

    @staticmethod
    def _take(stream: _Stream, seq: int, payload: bytes, address: int) -> None:
        behind = seq - (stream.first + stream.next) & 0xFFFFFFFF
        position = stream.next + (behind - (1 << 32) if behind >> 31 else behind)
        stream.packets.append((position, address))
        if position < stream.next:
            stream.again += 1
        stream.waiting[position] = max(stream.waiting.get(position, b""), payload, key=len)
        while True:
            ready = [p for p in stream.waiting if p <= stream.next]
            if not ready:
                return
            data = stream.waiting.pop(ready[0])[stream.next - ready[0] :]
            if data:
                stream.feed(data)

    def verdict(self) -> Verdict:
        """After the end."""
        counts: Counter[str] = Counter()
        examples: list[str] = []
        numbers: dict[int, int] = {}
        jobs: set[int] = set()
        for (source, destination), stream in self._streams.items():
            other = self._streams.get((destination, source))
            if stream.rank < 0 or other is None:
                continue
            counts["again"] += stream.again
            for position, address in stream.packets:
                counts["packets"] += 1
                index = bisect.bisect_right(stream.starts, position) - 1
                mark = stream.marks[index] if index >= 0 else None
                if mark is None:
                    continue
                counts["judged"] += 1
                tag = self.layout.decode(address)
                if tag is None:
                    counts["untagged"] += 1
                elif not _agrees(tag, mark, stream.rank, other.rank, numbers):
                    counts["mistagged"] += 1
                else:
                    jobs.add(tag.job)
                    continue
                if len(examples) < 5:
                    examples.append(
                        f"position {position} of the frame at {stream.starts[index]}, marked {mark:#x}, numbers {numbers}: {tag}"
                    )
        lost = 0
        for opened in self._sockets:
            lost += struct.unpack("II", opened.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
            opened.close()
        return Verdict(
            packets=counts["packets"],
            judged=counts["judged"],
            mistagged=counts["mistagged"],
            untagged=counts["untagged"],
            again=counts["again"],
            lost=lost,
            communicators=len(numbers),
            jobs=frozenset(jobs),
            examples=tuple(examples),
        )


def _agrees(tag: Tag, mark: int, source: int, destination: int, numbers: dict[int, int]) -> bool:
    """`numbers` has the library's number of each of the program's communicators, as first seen."""
    communicator = mark & 7
    return (
        tag.primitive == PRIMITIVES[mark >> 3 & 0xF]
        and (tag.source, tag.destination) == (source, destination)
        and tag.communicator == numbers.setdefault(communicator, tag.communicator)
    )


@contextlib.contextmanager
def capturing(namespace: str, devices: list[str], layout: Layout) -> Iterator[Capture]:
    """A Capture of devices in a namespace of /run/netns."""
    made: list[Capture] = []

    def make() -> None:
        # The thread is in the namespace for its whole, short life.
        with open(f"/run/netns/{namespace}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0:
                made.append(Capture(devices, layout))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise LabError(f"namespace {namespace} cannot be entered")
    with made[0] as capture:
        yield capture
