"""Packets of MPI primitives at the core switches of a lab: by the switches' own counters, and one by one with times."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _core_capture import RECORD

from waystage.bench import BenchError
from waystage.interconnect import pipeline, tags
from waystage.worlds.lab.lab import Lab

CAPTURE = Path(__file__).with_name("_core_capture.py")
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
    """Every tagged packet that enters a core switch, as the process of `_core_capture.py` appends it to a file."""

    def __init__(self, lab: Lab, file: Path) -> None:
        self._cores = lab.topology.core_switches
        self._file = file
        self._read = 0
        self.seen: list[Seen] = []
        ends = [end for wire in lab.wiring.wires for end in wire.ends if end.node in self._cores]
        pairs = [word for end in ends for word in (str(self._cores.index(end.node)), end.device)]
        file.touch()
        command = [*lab.resources.enter_fabric(), sys.executable, "-P", str(CAPTURE), str(file), *pairs]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def read(self) -> list[Seen]:
        """Packets since the last call, which `seen` gains. Raises BenchError where the capture has ended."""
        if self._process.poll() is not None:
            raise BenchError(f"the capture of packets ended with status {self._process.returncode}")
        with self._file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        data = data[: len(data) // RECORD.size * RECORD.size]
        self._read += len(data)
        found = [
            (stamp, self._cores[core], tags.primitive_name(octet >> tags.PRIMITIVE_SHIFT - tags.MARKER_SHIFT))
            for stamp, core, octet in RECORD.iter_unpack(data)
        ]
        self.seen += found
        return found

    def wait_for(self, wanted: set[tuple[str, str]], since_ns: int, limit_s: float) -> None:
        """Until each (core switch, primitive) was seen after `since_ns`. Raises BenchError."""
        deadline = time.monotonic() + limit_s
        left = set(wanted)
        while left:
            left -= {(core, primitive) for stamp, core, primitive in self.read() if stamp > since_ns}
            if left and time.monotonic() > deadline:
                core, primitive = min(left)
                raise BenchError(f"no packet of {primitive} came to {core} within {limit_s:.0f} s")
            time.sleep(0.01)


@contextmanager
def core_packets(lab: Lab) -> Iterator[CorePackets]:
    """Captured while the body runs."""
    with tempfile.TemporaryDirectory(prefix="waystage-packets-") as folder:
        packets = CorePackets(lab, Path(folder) / "packets")
        try:
            yield packets
        finally:
            packets.close()
