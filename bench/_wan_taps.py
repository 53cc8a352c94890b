"""When small packets pass the two ends of an emulated path, as the kernel saw them: the truth of their round trips.

A tap is a packet socket (packet(7)) in the namespace of an end, read by a separate process; the kernel stamps what
it shows with the system's one clock. The time that a packet and its answer were on the path is what passed at left
less what passed at right: waiting for a processor, at the programs that sent and answered, is in neither. Run as a
program, this is the tap: packets to stdout until stdin ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from waystage.bench import BenchError, own_process
from waystage.worlds.lab.wan import paths

SMALL_BYTES = 200
ETH_P_ALL, ETH_P_IP, SO_TIMESTAMPNS, SO_RCVBUFFORCE, PACKET_OUTGOING = 0x0003, 0x0800, 35, 33, 4
PROBE, ECHO, ANSWER = 0x21, 1, 2
PATIENCE_S = 10.0

RECORD = struct.Struct("<QBH")
"""Before each packet: when (ns), whether it leaves, how many bytes."""

Seen = tuple[int, bool, bytes]
"""When, whether it left, and the IP packet."""


@dataclass
class Taps:
    """Milliseconds that each packet and its answer were on the path, once the body has ended."""

    on_path_ms: list[float] = field(default_factory=list)


@contextlib.contextmanager
def tapped(where: str) -> Iterator[Taps]:
    """See echoes of `ping` and `waystage probe` pass both ends of a path while the body runs. Raises BenchError."""
    taps = Taps()
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(_tap(where, side)) for side in ("left", "right")]
        yield taps
        seen = []
        for end in ends:
            out, err = end.communicate(timeout=PATIENCE_S)
            if end.returncode != 0:
                raise BenchError(f"the tap failed: {_last(err)}")
            seen.append(out)
    taps.on_path_ms += round_trips(*map(records, seen))


@contextlib.contextmanager
def _tap(where: str, side: str) -> Iterator[subprocess.Popen[bytes]]:
    process = paths.start(
        where,
        side,
        own_process(__file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], PATIENCE_S)[0] or process.stdout.read(1) != b"!":
            process.kill()
            raise BenchError(f"the tap does not start: {_last(process.communicate()[1])}")
        yield process
    finally:
        process.kill()
        process.wait()


def _last(err: bytes) -> str:
    return err.decode(errors="replace").strip()[-300:]


def records(seen: bytes) -> Iterator[Seen]:
    at = 0
    while at < len(seen):
        when, leaves, length = RECORD.unpack_from(seen, at)
        at += RECORD.size
        yield when, bool(leaves), seen[at : at + length]
        at += length


def round_trips(left: Iterable[Seen], right: Iterable[Seen]) -> list[float]:
    """Milliseconds on the path of each echo that was answered."""
    asked, answered = _passed(left, asks_leave=True)
    received, returned = _passed(right, asks_leave=False)
    whole = asked.keys() & answered.keys() & received.keys() & returned.keys()
    return [(answered[key] - asked[key] - (returned[key] - received[key])) / 1e6 for key in whole]


def _passed(seen: Iterable[Seen], *, asks_leave: bool) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """When echoes passed an end, and when their answers did."""
    asks: dict[bytes, int] = {}
    answers: dict[bytes, int] = {}
    for when, leaves, packet in seen:
        echo = _echo(packet)
        if echo is not None and leaves == (asks_leave == echo[0]):
            (asks if echo[0] else answers)[echo[1]] = when
    return asks, answers


def _echo(packet: bytes) -> tuple[bool, bytes] | None:
    """Whether an IPv4 packet is an echo or the answer, and of which: of ICMP's (RFC 792) by number, of a probe's by
    when it was sent.
    """
    if len(packet) < 28 or packet[0] >> 4 != 4:
        return None
    body = packet[4 * (packet[0] & 15) :]
    if packet[9] == socket.IPPROTO_ICMP and body[:1] in (b"\x00", b"\x08"):
        return body[0] == 8, body[4:8]
    probe = body[8:]
    if packet[9] == socket.IPPROTO_UDP and len(probe) >= 52 and probe[0] == PROBE:
        if probe[5] == ECHO:
            return True, probe[24:32]
        if probe[5] == ANSWER:
            return False, probe[32:40]
    return None


def _watch() -> None:
    # The kernel shows outgoing packets only to sockets of every protocol.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sys.stdout.buffer.write(b"!")
        sys.stdout.buffer.flush()
        kept = []
        while True:
            ready = select.select([tap, sys.stdin], [], [])[0]
            if tap in ready:
                packet, notes, _, sender = tap.recvmsg(SMALL_BYTES + 1, 64)
                if len(packet) <= SMALL_BYTES and notes and sender[0] != "lo" and sender[1] == ETH_P_IP:
                    seconds, ns = struct.unpack("@ll", notes[0][2])
                    leaves = sender[2] == PACKET_OUTGOING
                    kept.append(RECORD.pack(seconds * 10**9 + ns, leaves, len(packet)) + packet)
            elif sys.stdin in ready:
                break
        sys.stdout.buffer.write(b"".join(kept))


if __name__ == "__main__":
    _watch()
