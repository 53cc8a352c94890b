"""Copies between the ends of an emulated path, and how much crosses it meanwhile. Shared by the wide-area benchmarks.

A real `waystage serve` runs at right and `waystage copy` at left, as whole commands, over a path that `waystage lab wan` made. What is read and
written is in memory (`/dev/shm`), so that no disk is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _wan_peers as peers

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError
from waystage.machine import CpuWatch
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

MEMORY = Path("/dev/shm")
PORT = 7900
SAMPLE_S = 0.05
READY_S = 60.0


def path_rate_bps() -> float:
    """What a path is to carry: 1 Gbit/s, which two processors just carry for both ends and the path; a single one less.

    $WAYSTAGE_BENCH_WAN_MBITS says otherwise.
    """
    given = os.environ.get("WAYSTAGE_BENCH_WAN_MBITS")
    if given is not None:
        return float(given) * 1e6
    return 1e9 if len(os.sched_getaffinity(0)) >= 2 else 200e6


@dataclass
class Trace:
    """What had left a path towards one end, against time: (seconds since the start, bytes, packets)."""

    points: list[tuple[float, int, int]] = field(default_factory=list)

    def bytes_at(self, seconds: float) -> float:
        """By this time, between two samples by a line."""
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
    """What leaves a path while the body runs."""
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


@dataclass(frozen=True)
class Copied:
    """A copy that ended. `value` is what it printed as JSON."""

    payload_bytes: int
    seconds: float
    valid: bool
    idle_pct: float
    value: dict[str, Any]
    trace: Trace

    def payload_share(self) -> float:
        """Payload over what arrived, headers and what came twice included."""
        return self.payload_bytes / self.trace.points[-1][1]


class Ends:
    """A server at right of a path, and keys for a client at left."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.server: subprocess.Popen[str]
        self.near, self.far = folder / "near", folder / "far"
        for each in (self.near, self.far):
            each.mkdir()
        wan_make_key(folder / "server.key")
        client = wan_make_key(folder / "client.key")
        (folder / "serve.toml").write_text(
            f'listen = "{peers.RIGHT}:{PORT}"\nkey = "server.key"\nlog = "serve.log"\n'
            f'[[root]]\npath = "{self.far}"\nwrite = true\nprivileged = true\n'
            f'[users.bench]\nkeys = ["{client}"]\naccount = "root"\nmodes = ["fast-start", "aggressive"]\nprobe = true\n',
            encoding="utf-8",
        )

    def words(self, *ends: str, mode: str = "fair", more: Sequence[str] = ()) -> list[str]:
        return [
            sys.executable, "-P", "-m", "waystage", "copy", *ends, "--json", "--mode", mode,
            "--port", str(PORT), "--identity", str(self.folder / "client.key"),
            "--server-key", wan_read_key(self.folder / "server.key"), "--udp-wait", "30", *more,
        ]  # fmt: skip

    def probing(self, *more: str) -> list[str]:
        """The words of a probe of the path."""
        return [
            sys.executable, "-P", "-m", "waystage", "probe", f"{peers.RIGHT}:{PORT}", "--json", *more,
            "--identity", str(self.folder / "client.key"),
            "--server-key", wan_read_key(self.folder / "server.key"), "--udp-wait", "30",
        ]  # fmt: skip

    def there(self, path: str) -> str:
        return f"{peers.RIGHT}:{self.far / path}"

    def begin(
        self, source: str, destination: str, *, mode: str = "fair", more: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a copy; whoever does ends it."""
        words = self.words(source, destination, mode=mode, more=more)
        return paths.start(
            self.name, "left", words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def copy(
        self,
        source: str,
        destination: str,
        *,
        mode: str = "fair",
        way: str = "forward",
        limit_s: float = 600.0,
    ) -> Copied:
        """Copy, and trace what arrives by `way`. Raises BenchError where it does not end well, or not over UDP."""
        before = wan.status(self.name)
        with traced(self.name, way) as trace, CpuWatch() as watch:
            began = time.monotonic()
            process = self.begin(source, destination, mode=mode)
            try:
                out, err = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise BenchError(f"the copy did not end within {limit_s:.0f} s") from None
            seconds = time.monotonic() - began
        if process.returncode != 0:
            raise BenchError(f"the copy failed: {err.strip()[-300:]}")
        value = json.loads(out)
        if value["connection"]["way"] != "UDP":
            raise BenchError("the copy went over TCP: nothing came back over UDP in time")
        return Copied(
            value["counts"]["bytes"],
            seconds,
            peers.valid_between(before, wan.status(self.name)),
            round(watch.idle_pct, 1),
            value,
            trace,
        )

    def serve(self) -> None:
        """Start the server, and wait until it listens."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        config = str(self.folder / "serve.toml")
        words = [
            sys.executable,
            "-P",
            "-m",
            "waystage",
            "serve",
            "--config",
            config,
            "--ready-file",
            str(ready),
        ]
        self.server = paths.start(
            self.name, "right", words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            if self.server.poll() is not None or time.monotonic() > deadline:
                self.server.kill()
                raise BenchError(
                    f"waystage serve does not start: {self.server.communicate()[1].strip()[-300:]}"
                )
            time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> None:
    """It has ended: asked, and if need be forced."""
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def ends_of(name: str) -> Iterator[Ends]:
    """A server at right of path `name`, in memory, as long as the body runs."""
    with tempfile.TemporaryDirectory(prefix="waystage-wan-", dir=MEMORY) as folder:
        ends = Ends(name, Path(folder))
        ends.serve()
        try:
            yield ends
        finally:
            ended(ends.server)


def made_file(path: Path, size: int) -> Path:
    """A file that no compression helps."""
    piece = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for at in range(0, size, len(piece)):
            file.write(piece[: size - at])
    return path
