"""Tasks of the native module while they run: how many bytes move in a time, and what becomes of them in a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from harness import WAIT_S

if TYPE_CHECKING:
    from waystage._native import Task

T = TypeVar("T", bound="Task")

OBEYED_S = 0.1
"""A control takes effect within this time."""

SETTLED_S = 0.5
"""Bytes already on their way have arrived after this time, or on a busy machine after some of it."""

PATIENCE_S = WAIT_S


@contextmanager
def paced(make: Callable[[], T], bytes_per_s: int, total: int) -> Iterator[T]:
    """A task of `total` bytes whose rate was set near its beginning: one that ran far before is begun anew."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with make() as task:
            task.set_rate(bytes_per_s)
            if task.flow().bytes_done <= total // 4:
                yield task
                return
        assert time.monotonic() < deadline, "no task obeyed before it had moved a quarter of its bytes"


def until_moving(task: Task, beyond: int = 0) -> int:
    """Wait until more than `beyond` bytes have moved; how many have."""
    deadline = time.monotonic() + PATIENCE_S
    while (moved := task.flow().bytes_done) <= beyond:
        assert time.monotonic() < deadline, f"stays at {moved} bytes"
        assert not task.wait(0.005), "ended before it could be paced"
    return moved


def cancelled_at_once(task: Task) -> None:
    """Cancel it: it waits for the end of no pause, nor for the next word to its peer, which comes after 20 s."""
    began = time.monotonic()
    task.cancel()
    assert time.monotonic() - began < 15


def moved_in(task: Task, seconds: float) -> float:
    """Bytes that move in this time. A busy machine sleeps for longer: then what has moved until it woke, in proportion."""
    # Clocks around the counts: where this thread waits between the two, the time is too long, and never too short.
    began, before = time.monotonic(), task.flow().bytes_done
    time.sleep(seconds)
    moved = task.flow().bytes_done - before
    return moved * seconds / (time.monotonic() - began)


def moves_below(task: Task, most: float, seconds: float = 1.0) -> float:
    """Bytes/s, no more than `most`. A thread that had to wait counts late what it was allowed before: not twice in a row."""
    moved = moved_in(task, seconds) / seconds
    if moved >= most:
        moved = moved_in(task, seconds) / seconds
    assert moved < most
    return moved


def moves_between(task: Task, least: float, most: float, seconds: float = 1.0) -> None:
    """Returns once `least` bytes/s move; at no time more than `most` do. A busy machine may be slower for a while."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        moved = moves_below(task, most, seconds)
        if moved > least:
            return
        assert not task.wait(0), f"ended at {moved} bytes/s"
        assert time.monotonic() < deadline, f"stays at {moved} bytes/s"


def is_limited_by(task: Task, by: str, seconds: float = 0.6) -> bool:
    """Whether this limits the task, within a generous time; asked every `seconds`."""
    deadline = time.monotonic() + PATIENCE_S
    task.flow()
    while not task.wait(0) and time.monotonic() < deadline:
        time.sleep(seconds)
        if task.flow().limited_by == by:
            return True
    return False


def stands_still(task: Task, seconds: float = 0.5) -> bool:
    """Whether no byte moves for this time, once those on their way have arrived."""
    for _ in range(10):
        time.sleep(SETTLED_S)
        if moved_in(task, seconds) == 0:
            return not task.wait(0)
    return False
