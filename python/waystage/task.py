"""Waiting for a task of the data plane: progress, signals, and an end in every case.

Arrives: a task that has started.
Leaves: the same task, ended; an exception where it failed or a signal interrupted the wait.
Must not know: what the task does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from waystage._native import Task

Progress = Callable[[str, float], None]
"""Called with what is being done and the completed share, 0 to 1."""

INTERVAL_S = 0.2
"""Between two reports of progress."""

T = TypeVar("T", bound="Task")


def no_progress(what: str, share: float) -> None:
    """Report nothing."""


def follow(task: T, report: Callable[[dict[str, int]], None], interval_s: float = INTERVAL_S) -> T:
    """Wait until `task` has ended, calling `report` with its counts meanwhile.

    An exception, such as KeyboardInterrupt for a signal, cancels the task: its threads have ended when this returns.
    Raises what ended the task early.
    """
    try:
        while not task.wait(interval_s):
            report(task.progress())
    except BaseException:
        task.cancel()
        raise
    return task
