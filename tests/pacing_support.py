"""Tasks of the native module while they run: how many bytes move in a time, and what becomes of them in a pause."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystage._native import Task

OBEYED_S = 0.1
"""A control takes effect within this time."""

SETTLED_S = 0.5
"""Bytes already on their way have arrived after this time, or on a busy machine after some of it."""

PATIENCE_S = 60.0


def until_moving(task: Task, beyond: int = 0) -> int:
    """Wait until more than `beyond` bytes have moved; how many have."""
    deadline = time.monotonic() + PATIENCE_S
    while (moved := task.flow().bytes_done) <= beyond:
        assert time.monotonic() < deadline, f"stays at {moved} bytes"
        assert not task.wait(0.005), "ended before it could be paced"
    return moved


def moved_in(task: Task, seconds: float) -> float:
    """Bytes that move in this time. A busy machine sleeps for longer: then what has moved until it woke, in proportion."""
    before, began = task.flow().bytes_done, time.monotonic()
    time.sleep(seconds)
    moved = task.flow().bytes_done - before
    return moved * seconds / (time.monotonic() - began)


def moves_between(task: Task, least: float, most: float, seconds: float = 1.0) -> None:
    """Returns once `least` bytes/s move; at no time more than `most` do. A busy machine may be slower for a while."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        moved = moved_in(task, seconds) / seconds
        assert moved < most
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
