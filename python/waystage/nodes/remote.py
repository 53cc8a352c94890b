"""What runs in a worker: a check of its node, and tasks, each with a handle to its surroundings.

Arrives: a function and its arguments; what the whole command needs of a node.
Leaves: an outcome that says on which node; progress meanwhile. A task ends where its result is no longer wanted.
Must not know: what tasks do, how they are scheduled.
"""

from __future__ import annotations

import errno
import importlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from waystage import __version__
from waystage.display import display
from waystage.nodes.errors import Cancelled
from waystage.nodes.shared import Mark

TOPIC = "waystage-progress"

REPORT_S = 1.0
"""Between two messages of progress of one task."""

LOOK_S = 0.2
"""Between two checks whether a task is still wanted."""

PASSING = {
    errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN,
    errno.ENETUNREACH, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO, errno.EINTR, errno.ENOMEM,
}  # fmt: skip
"""Errors of a node or of the way to its storage: another attempt, perhaps on another node, may succeed."""


@dataclass(frozen=True)
class Job:
    """What all tasks of one command have in common."""

    number: str
    marks: tuple[Mark, ...] = ()
    version: str = __version__
    uid: int = os.geteuid()


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a value, a refusal of the node, or an error."""

    node: str
    value: Any = None
    refused: str = ""
    error: str = ""
    raised: bytes = b""
    """The exception, pickled, where that is possible."""
    passing: bool = False
    """Whether another attempt may succeed."""


class Here:
    """The surroundings of a task: its node, its share of the cores, its progress."""

    def __init__(self, key: str, worker: Any) -> None:
        self.node = node_name()
        self._key, self._worker = key, worker
        self._looked = self._reported = time.monotonic()

    def threads(self, given: int | None, usual: int) -> int:
        """The threads that a task may use: `given`, or its share of the `usual` number for a whole node."""
        return given or max(1, usual // max(1, self._worker.state.nthreads))

    def progress(self, what: str, share: float) -> None:
        """Report. Raises Cancelled where the result is no longer wanted: an option of `waystage.task.Progress`."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if self.is_unwanted():
                raise Cancelled
        if now - self._reported >= REPORT_S:
            self._reported = now
            with suppress(Exception):  # Progress is no reason to fail.
                self._worker.log_event(TOPIC, {"key": self._key, "what": what, "share": share})

    def is_unwanted(self) -> bool:
        """Whether the client has cancelled this task, or is gone."""
        task = self._worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled"


def node_name() -> str:
    """The name of this node in messages."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def inspect(job: Job) -> str:
    """Why this node cannot take part, as a sentence; empty where it can."""
    node = node_name()
    if job.version != __version__:
        return (
            f"{node} has Waystage {__version__} and this command is {job.version}: install the same version on all"
            " nodes and start the workers again"
        )
    if job.uid != os.geteuid():
        return (
            f"the worker on {node} runs as user {os.geteuid()} and this command as user {job.uid}: start the workers"
            " as the user whose files they are to read and write"
        )
    for mark in job.marks:
        try:
            os.stat(mark.path)
        except OSError as error:
            if error.errno == errno.ENOENT and os.path.isdir(mark.shown):
                why = "is another directory there: name one on storage that all nodes share"
            else:
                why = f"cannot be read there: {error.strerror}: mount it there, or stop the worker on {node}"
            return f"{node}: {display(mark.shown)} {why}"
    return ""


def prepare(modules: tuple[str, ...]) -> None:
    """Import what tasks will need, beside this worker's present task: its first task would otherwise wait for it."""

    def load() -> None:
        for name in modules:
            with suppress(Exception):  # The task that needs it says what is wrong.
                importlib.import_module(name)

    threading.Thread(target=load, name="waystage-prepare", daemon=True).start()


_checked: dict[str, str] = {}
_running: dict[str, int] = {}
_lock = threading.Lock()


def running(number: str) -> int:
    """How many tasks of a command run in this worker."""
    with _lock:
        return _running.get(number, 0)


def call(job: Job, key: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Outcome:
    """Run a task in this worker; no exception of it passes, as it might not arrive as what it was."""
    from distributed import get_worker

    here = Here(key, get_worker())
    with _lock:
        refused = _checked.get(job.number)
    if refused is None:
        refused = inspect(job)
        with _lock:
            _checked.clear()  # Only the command in progress is worth remembering.
            _checked[job.number] = refused
    if refused:
        return Outcome(here.node, refused=refused)
    with _lock:
        _running[job.number] = _running.get(job.number, 0) + 1
    try:
        return Outcome(here.node, function(here, *arguments))
    except Cancelled:
        return Outcome(here.node, error="it was cancelled", passing=True)
    except Exception as error:
        return _failed(here.node, error)
    finally:
        with _lock:
            _running[job.number] -= 1
            if not _running[job.number]:
                del _running[job.number]


def _failed(node: str, error: Exception) -> Outcome:
    text = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
    passing = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PASSING)
    try:
        raised = pickle.dumps(error)
        pickle.loads(raised)
    except Exception:
        raised = b""
    return Outcome(node, error=text, raised=raised, passing=passing)
