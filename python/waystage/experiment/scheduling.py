"""What a scheduler sees and answers.

Arrives: the state of the queue at one moment.
Leaves: the interface of schedulers; exceptions of algorithms as one sentence.
Must not know: which algorithms there are, how a choice is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec


class AlgorithmError(ValueError):
    """An algorithm that cannot be found, built or used; the message names it and says what it did."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the queue. `nodes` free nodes are enough for it, whichever they are."""

    job: Any
    ranks: int
    nodes: int
    submitted_s: float
    estimate_s: float


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A job that holds `nodes` nodes, and when it is expected to end (never before now)."""

    job: Any
    nodes: int
    started_s: float
    expected_end_s: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler sees; it is asked again after each start. `waiting` is in order of arrival."""

    now_s: float
    nodes: int
    free_nodes: int
    free_slots: int
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]


@runtime_checkable
class Scheduler(Protocol):
    """Says which waiting jobs start now, by `job`, in the order in which they get their hosts."""

    def choose(self, moment: Moment) -> Sequence[Any]: ...


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """`call()`, with an exception as one sentence about `what`. Raises AlgorithmError."""
    try:
        return call()
    except AlgorithmError:
        raise
    except Exception as error:
        raise AlgorithmError(f"{what} failed: {said(error)}{_place(error)}") from error


def said(error: Exception) -> str:
    """What an exception says, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception) -> str:
    """The innermost line, for the author of the algorithm."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
