"""Tasks of the native module while they run: how many bytes move in a time, and what becomes of them in a pause."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystage._native import Task

OBEYED_S = 0.1
"""A control takes effect within this time."""

SETTLED_S = 0.5
"""Bytes already on their way have arrived after this time, also on a busy machine."""

PATIENCE_S = 60.0


def until_moving(task: Task, beyond: int = 0) -> int:
    """Wait until more than `beyond` bytes have moved; how many have."""
    deadline = time.monotonic() + PATIENCE_S
    while (moved := task.flow().bytes_done) <= beyond:
        assert time.monotonic() < deadline, f"stays at {moved} bytes"
        assert not task.wait(0.005), "ended before it could be paced"
    return moved


def moved_in(task: Task, seconds: float) -> int:
    """Bytes that move in this time."""
    before = task.flow().bytes_done
    time.sleep(seconds)
    return task.flow().bytes_done - before


def limited_by(task: Task, seconds: float = 0.6) -> str:
    """What limits a task in the next `seconds`."""
    task.flow()
    time.sleep(seconds)
    return task.flow().limited_by


def stands_still(task: Task, seconds: float = 0.5) -> bool:
    """Whether no byte moves for this time, once those on their way have arrived."""
    time.sleep(SETTLED_S)
    return moved_in(task, seconds) == 0
