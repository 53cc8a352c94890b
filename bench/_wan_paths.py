"""Emulated wide-area paths: what one carries over time, and programs at both of its ends. Used by the wide-area
benchmarks.

A measurement over a path counts where the path kept up: at most one packet in a thousand late, or lost by this
machine instead of by the path's own loss. `late` is that rule for `take_turns`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, Figures
from waystage.worlds.lab import wan
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.wan import paths

LEFT, RIGHT = paths.IPV4["left"], paths.IPV4["right"]
MOST_WRONG = 0.001
SAMPLE_S = 0.05
READY_S = 60.0


class TooSlow(BenchError):
    """A program did not end in time."""


# -- the path -------------------------------------------------------------------------------------


def path_rate_bps() -> float:
    """A path's rate: 1 Gbit/s, which two CPUs just carry for both ends and the path; 200 Mbit/s on one CPU.

    $WAYSTAGE_BENCH_WAN_MBITS replaces it.
    """
    given = os.environ.get("WAYSTAGE_BENCH_WAN_MBITS")
    if given is not None:
        return float(given) * 1e6
    return 1e9 if len(os.sched_getaffinity(0)) >= 2 else 200e6


def link(rate_bps: float, rtt_ms: float, **more: str) -> dict[str, str]:
    """The properties of a path, as `lab wan` takes them."""
    return {"rate": f"{rate_bps / 1e6:g}Mbit", "delay": f"{rtt_ms / 2:g}ms", **more}


@contextlib.contextmanager
def path(
    properties: Mapping[str, str],
    seed: int = 1,
    *,
    back: Mapping[str, str] | None = None,
    tick_ns: int | None = None,
) -> Iterator[str]:
    """A path while the body runs, by its name; `back` has the properties that differ from right to left."""
    if os.geteuid() != 0:
        raise BenchError("a path between namespaces needs root: run as root")
    name = f"b{uuid.uuid4().hex[:8]}"
    profile = msgspec.structs.replace(
        wan.Profile(both=wan.said(properties), back=wan.said(back or {})), seed=seed, tick=tick_ns
    )
    profile = msgspec.structs.replace(profile, late=max(profile.late, profile.round_trip_ns // 100))
    try:
        paths.up(name, profile)
    except LabError as error:
        raise BenchError(str(error)) from error
    try:
        yield name
    finally:
        wan.down(name)


def path_cpu_s(name: str) -> float:
    """CPU time of a path's process so far: user and system, which includes the receiving stack's part."""
    recorded = wan.find(name).process
    assert recorded is not None, "a path that is found has a process"
    text = Path(f"/proc/{recorded.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def wrong_between(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The share of packets that were late, or lost by this machine, between two statuses; the worse direction."""
    worst = 0.0
    for way, now in after["directions"].items():
        then = before["directions"][way]
        wrong = sum(now[key] - then[key] for key in ("late", "read_late", "overflow"))
        worst = max(worst, wrong / max(now["in"] - then["in"], 1))
    return worst


def wrong_share(name: str) -> float:
    """The same since the path came up."""
    return max(float(way["wrong_share"]) for way in wan.status(name)["directions"].values())


def late(figures: Figures) -> str | None:
    """Why a measurement over a path does not count."""
    share = figures.get("wrong_share", 0.0)
    return f"the path was late with {100 * share:.2g} % of packets" if share > MOST_WRONG else None


# -- what crosses it ------------------------------------------------------------------------------


@dataclass
class Trace:
    """What had left a path in one direction, over time: (seconds since the start, bytes, packets)."""

    points: list[tuple[float, int, int]] = field(default_factory=list)

    def bytes_at(self, seconds: float) -> float:
        """Bytes by this time, interpolated between samples."""
        before = (0.0, 0)
        for at, count, _ in self.points:
            if at >= seconds:
                share = (seconds - before[0]) / max(at - before[0], 1e-9)
                return before[1] + share * (count - before[1])
            before = (at, count)
        return float(before[1])

    def rate_bps(self, begin_s: float, end_s: float) -> float:
        return 8 * (self.bytes_at(end_s) - self.bytes_at(begin_s)) / (end_s - begin_s)

    def first_s(self) -> float:
        """When data began to arrive."""
        return next((at for at, _, packets in self.points if packets > 50), 0.0)

    def last_s(self) -> float:
        """When the last of it had arrived."""
        last = self.points[-1][1]
        return next(at for at, count, _ in self.points if count >= 0.999 * last)


@contextlib.contextmanager
def traced(name: str, way: str = "forward") -> Iterator[Trace]:
    """Sample what leaves a path while the body runs."""
    trace, stop = Trace(), threading.Event()
    first = wan.status(name)["directions"][way]
    began = time.monotonic()

    def sample() -> None:
        while not stop.is_set():
            now = wan.status(name)["directions"][way]
            at = time.monotonic() - began
            trace.points.append((at, now["out_bytes"] - first["out_bytes"], now["out"] - first["out"]))
            stop.wait(SAMPLE_S)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield trace
    finally:
        stop.set()
        thread.join()


# -- programs at its ends -------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A program that ran at left, and the path meanwhile."""

    status: int
    out: str
    err: str
    seconds: float
    path_cpu_s: float
    wrong_share: float


def run_left(name: str, argv: list[str], limit_s: float) -> Ended:
    """Run a program at left to its end. Raises TooSlow."""
    cpu_s, before = path_cpu_s(name), wan.status(name)
    began = time.monotonic()
    process = start_left(name, argv)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise TooSlow(f"{argv[0]} did not end within {limit_s:.0f} s") from None
    seconds = time.monotonic() - began
    wrong = wrong_between(before, wan.status(name))
    return Ended(process.returncode, out, err, seconds, path_cpu_s(name) - cpu_s, wrong)


def start_left(name: str, argv: list[str]) -> subprocess.Popen[str]:
    """Start a program at left; the caller ends it."""
    return paths.start(name, "left", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def serving(name: str, side: str, argv: list[str], ready: int | Path) -> Iterator[None]:
    """A server while the body runs, once it listens on a TCP port or has written a file."""
    process = start_server(name, side, argv, ready)
    try:
        yield
    finally:
        ended(process)


def start_server(name: str, side: str, argv: list[str], ready: int | Path) -> subprocess.Popen[str]:
    """Start a server and wait until it is ready. Raises BenchError with what it printed where it is not in time."""
    with tempfile.TemporaryFile("w+") as output:
        process = paths.start(
            name, side, argv, stdout=output, stderr=output, stdin=subprocess.DEVNULL, text=True
        )
        deadline = time.monotonic() + READY_S
        while not (ready.exists() if isinstance(ready, Path) else _listens(process.pid, ready)):
            if process.poll() is not None or time.monotonic() > deadline:
                ended(process)
                output.seek(0)
                raise BenchError(
                    f"{' '.join(argv[:5])} is not ready ({ready}): {output.read().strip()[-300:]}"
                )
            time.sleep(0.02)
    return process


def ended(process: subprocess.Popen[str]) -> None:
    """Terminate it, and kill it where it does not end in time."""
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _listens(pid: int, port: int) -> bool:
    """Read the server's own /proc/net: a connection to try the port would be the one that it serves."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()
            rows = [line.split() for line in lines[1:]]
            if any(row[1].endswith(wanted) and row[3] == "0A" for row in rows):
                return True
    return False
