"""The machine: described, and watched while something runs."""

from __future__ import annotations

import os
import time

from pathlib import Path

import pytest

from waystage.machine import CpuWatch, ThreadWatch, _Ticks, describe


def test_a_machine_is_described_by_what_a_figure_depends_on() -> None:
    machine = describe()
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["kernel"] == os.uname().release
    assert machine["memory_bytes"] > 0


def test_work_shows_in_the_idle_share() -> None:
    """One busy thread: the machine cannot have been wholly idle, whatever else runs on it."""
    with CpuWatch(period_s=0.1) as watch:
        began_s, busy_s = time.monotonic(), time.process_time()
        while time.process_time() < busy_s + 0.6 or len(watch.timeline) < 2:
            pass
        worked = (time.process_time() - busy_s) / (time.monotonic() - began_s)
    assert watch.idle_pct <= 100 - 50 * worked / (os.cpu_count() or 1)
    assert 0 <= watch.lowest_idle_pct <= watch.idle_pct + 1e-9
    assert len(watch.timeline) >= 2
    assert [t for t, _ in watch.timeline] == sorted(t for t, _ in watch.timeline)


def test_a_watch_that_ends_at_once_has_no_share_to_blame() -> None:
    watch = CpuWatch(period_s=60).start()
    watch.stop()
    watch.stop()
    assert 0 <= watch.idle_pct <= 100


def test_short_of_cpu_is_below_five_percent_idle() -> None:
    watch = CpuWatch()
    watch._first, watch._last = _Ticks(0, 0, 0), _Ticks(49, 1000, 20)
    assert watch.steal_pct == 2.0
    assert watch.short_of_cpu
    watch._last = _Ticks(51, 1000, 0)
    assert not watch.short_of_cpu


def test_a_thread_is_limited_in_periods_in_which_it_ran_all_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    now = 0.0
    monkeypatch.setattr("waystage.machine.time.monotonic", lambda: now)
    watch = ThreadWatch(1)
    watch._stat = tmp_path / "stat"

    def used(user_s: float, system_s: float) -> None:
        ticks = f"{round(user_s / tick_s)} {round(system_s / tick_s)}"
        watch._stat.write_text(f"7 (a) b c) R 1 2 3 4 5 6 7 8 9 10 {ticks} 0 0 -10\n")

    used(5, 5)
    watch._begin()
    for user_s, system_s in ((5.6, 5.4), (5.7, 5.8), (5.7, 5.8), (6.0, 6.4)):
        now += 1
        used(user_s, system_s)
        watch._take()
    assert watch.limited_pct() == 25 * 2
    watch._stat.unlink()
    now += 1
    watch._take()
    assert watch.limited_pct() == 25 * 2, "the process has ended"


def test_a_thread_that_works_is_seen_to() -> None:
    watch = ThreadWatch(os.getpid())
    before, used_s = watch._ticks(), time.thread_time()
    while time.thread_time() < used_s + 0.1:
        pass
    after = watch._ticks()
    assert before is not None and after is not None
    assert after - before >= 0.05 * os.sysconf("SC_CLK_TCK")
