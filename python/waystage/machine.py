"""The machine of a measurement, and its load during it.

Arrives: /proc.
Leaves: a description, this process's peak memory, and the idle share of the CPUs over time.
Must not know: what is being measured.

An emulated fabric is limited by the CPU first. A run with less than 5 % idle time measured the machine and must
report that.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

SHORT_OF_CPU_IDLE_PCT = 5.0
"""Below this mean idle share a run is marked as short of CPU."""


def describe() -> dict[str, Any]:
    """Cores, kernel, CPU model and memory."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "processor": _first_field("/proc/cpuinfo", "model name"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }


def peak_gib() -> float:
    """The largest resident set of this process so far, mapped files included, proc_pid_status(5)."""
    kib = _first_field("/proc/self/status", "VmHWM").split()[0]
    return round(int(kib) / (1 << 20), 3)


class CpuWatch:
    """Samples /proc/stat from a thread between `start` and `stop`; also a context manager.

    `timeline` holds (time_ns, idle percent of the period that ended then).
    """

    def __init__(self, period_s: float = 1.0) -> None:
        self.timeline: list[tuple[int, float]] = []
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._first = self._last = _Ticks(0, 0, 0)

    def start(self) -> CpuWatch:
        self._first = self._last = _cpu_times()
        self._thread = threading.Thread(target=self._sample, name="cpu-watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._take()

    def __enter__(self) -> CpuWatch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def idle_pct(self) -> float:
        """Mean idle percent of all CPUs since the start, up to the last sample; 100 before there is one."""
        return _idle_pct(self._first, self._last)

    @property
    def steal_pct(self) -> float:
        """Steal time in percent of all CPUs' time, proc(5)."""
        total = self._last.total - self._first.total
        return 100.0 * (self._last.stolen - self._first.stolen) / total if total > 0 else 0.0

    @property
    def lowest_idle_pct(self) -> float:
        """The lowest idle percent of any period."""
        return min((idle for _, idle in self.timeline), default=100.0)

    @property
    def short_of_cpu(self) -> bool:
        """Whether the CPU limited the measurement."""
        return self.idle_pct < SHORT_OF_CPU_IDLE_PCT

    def _sample(self) -> None:
        while not self._stop.wait(self._period_s):
            self._take()

    def _take(self) -> None:
        now = _cpu_times()
        if now.total > self._last.total:
            self.timeline.append((time.time_ns(), _idle_pct(self._last, now)))
            self._last = now


class _Ticks(NamedTuple):
    idle: int
    total: int
    stolen: int


def _cpu_times() -> _Ticks:
    """Ticks of all CPUs since boot, proc(5). Waiting for a disk counts as idle."""
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    # user nice system idle iowait irq softirq steal; guest times are in user already.
    ticks = [int(field) for field in first.split()[1:9]]
    return _Ticks(ticks[3] + ticks[4], sum(ticks), ticks[7])


def _idle_pct(before: _Ticks, after: _Ticks) -> float:
    total = after.total - before.total
    return 100.0 if total <= 0 else 100.0 * (after.idle - before.idle) / total


def _first_field(path: str, name: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
