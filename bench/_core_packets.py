"""Packets of MPI primitives at the core switches of a lab: by the switches' own counters, and one by one with times."""

from __future__ import annotations

import ctypes
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from waystage.bench import BenchError
from waystage.interconnect import pipeline, tags
from waystage.worlds.lab.lab import Lab

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
ETH_P_ALL = 0x0003
CLONE_NEWNET = 0x40000000
COOKIE = 0x2A
PRIORITY = 2000
"""Of the rules that count: above all others of their table."""

Seen = tuple[int, str, str]
"""Time, ns since 1970; core switch; primitive."""


def count_at_cores(lab: Lab, primitives: Sequence[str]) -> None:
    """Add a rule to every core switch for each primitive: packets that enter are counted, and forwarded as before."""
    for core in lab.topology.core_switches:
        for primitive in primitives:
            lab.switches.ofctl(
                "add-flow",
                lab.wiring.bridges[core],
                f"cookie={COOKIE:#x},table={pipeline.PORTS},priority={PRIORITY},vlan_tci=0x1000/0x1000,{_matches(primitive)},"
                f"actions=goto_table:{pipeline.TRANSIT}",
            )


def counted(lab: Lab, primitives: Sequence[str]) -> dict[tuple[str, str], int]:
    """(core switch, primitive) -> packets so far, by the switches' counters."""
    # Open vSwitch adds what its fast path counted to its rules now and then; this asks for it.
    lab.switches.appctl("revalidator/wait")
    found: dict[tuple[str, str], int] = {}
    for core in lab.topology.core_switches:
        text = lab.switches.ofctl("dump-flows", lab.wiring.bridges[core], f"table={pipeline.PORTS}")
        for primitive in primitives:
            octet = _matches(primitive)[7:9]
            lines = [
                row
                for row in text.splitlines()
                if f"priority={PRIORITY}" in row and f"dl_dst={octet}:" in row
            ]
            packets = re.search(r"n_packets=(\d+)", lines[0]) if lines else None
            if packets is None:
                raise BenchError(f"switch {core} lost the rule that counts packets of {primitive}")
            found[core, primitive] = int(packets[1])
    return found


def _matches(primitive: str) -> str:
    field = tags.primitive_field(primitive)
    return f"dl_dst={field.value >> 40:02x}:00:00:00:00:00/ff:00:00:00:00:00"


class CorePackets:
    """Every tagged packet that enters a core switch. Make it in a thread that is in the switches' namespace."""

    def __init__(self, lab: Lab) -> None:
        self.seen: list[Seen] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        for wire in lab.wiring.wires:
            for end in wire.ends:
                if end.node in lab.topology.core_switches:
                    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
                    opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                    opened.bind((end.device, ETH_P_ALL))
                    opened.settimeout(0.2)
                    self._threads.append(
                        threading.Thread(target=self._run, args=(opened, end.node), daemon=True)
                    )
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, opened: socket.socket, core: str) -> None:
        with opened:
            while not self._ended.is_set():
                try:
                    frame, ancillary, _, source = opened.recvmsg(64, 256)
                except TimeoutError:
                    continue
                address = int.from_bytes(frame[:6], "big")
                if source[2] == socket.PACKET_OUTGOING or not tags.is_tag(address):
                    continue
                stamp = next((data for level, kind, data in ancillary if kind == SO_TIMESTAMPNS), None)
                if stamp is not None:
                    seconds, ns = struct.unpack("qq", stamp[:16])
                    primitive = tags.primitive_name(address >> tags.PRIMITIVE_SHIFT)
                    self.seen.append((seconds * 10**9 + ns, core, primitive))

    def wait_for(self, wanted: set[tuple[str, str]], since_ns: int, limit_s: float) -> None:
        """Until each (core switch, primitive) was seen after `since_ns`. Raises BenchError."""
        deadline, at = time.monotonic() + limit_s, 0
        left = set(wanted)
        while left:
            until = len(self.seen)
            left -= {(core, primitive) for stamp, core, primitive in self.seen[at:until] if stamp > since_ns}
            at = until
            if time.monotonic() > deadline:
                core, primitive = min(left)
                raise BenchError(f"no packet of {primitive} came to {core} within {limit_s:.0f} s")
            time.sleep(0.01)


@contextmanager
def core_packets(lab: Lab) -> Iterator[CorePackets]:
    """Captured while the body runs."""
    made: list[CorePackets] = []

    def make() -> None:
        with open(f"/run/netns/{lab.resources.fabric}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0:
                made.append(CorePackets(lab))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise BenchError("the switches' namespace cannot be entered")
    try:
        yield made[0]
    finally:
        made[0].close()
