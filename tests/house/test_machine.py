"""The machine: described, and watched while something runs."""

from __future__ import annotations

import os
import time

from waystage.machine import CpuWatch, _Ticks, describe


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
