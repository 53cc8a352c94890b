"""Waiting for a part of a job: until it ends, is out of time, or is no longer wanted.

Arrives: a started process or transfer.
Leaves: its exit status and the last it said; or `JobFailed` with the cause.
Must not know: what the program does, what is moved.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from waystage.worlds.base import JobFailed
from waystage.worlds.lab.staging import Transfer

KEPT_LINES = 200
"""The end of what a program says is kept: enough for its last words, however much it prints."""

_CHECK_STOP_S = 0.2


class SupervisedProcess:
    """A process whose output (stdout and stderr, given as one pipe) is read as it comes."""

    def __init__(
        self, process: subprocess.Popen[Any], what: str, heard: Callable[[str], None] | None = None
    ) -> None:
        """`heard` is called with each line, in another thread."""
        self.process, self._heard = process, heard
        self.what = what
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), name=f"output of {what}")
        self._reader.start()

    def wait(self, limit_s: float, stop: threading.Event) -> str:
        """What it said, once it has ended well. Raises JobFailed; then it and its children have been killed."""
        try:
            ended = until_end(self.process.pid, limit_s, stop)
        finally:
            self.kill()
        if not ended:
            why = (
                "was stopped with the run"
                if stop.is_set()
                else f"did not end within {limit_s:g} s and was stopped"
            )
            raise JobFailed(f"{self.what} {why}{self._last_words()}")
        status = self.process.returncode
        if status != 0 and (reason := self._not_started()):
            raise JobFailed(f"{self.what} could not be started: {reason}")
        if status != 0:
            raise JobFailed(f"{self.what} {_how(status)}{self._last_words()}")
        return "\n".join(self._lines)

    def kill(self) -> None:
        """End the process and its session, and collect both it and the reader."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self.process.kill()
        self.process.wait()
        self._reader.join(timeout=2.0)

    def _read(self, pipe: IO[Any]) -> None:
        with pipe:
            while chunk := pipe.readline(4096):
                text = chunk if isinstance(chunk, str) else chunk.decode(errors="replace")
                self._lines.append(text.rstrip())
                if self._heard is not None:
                    self._heard(self._lines[-1])

    def _not_started(self) -> str:
        """Why mpirun could not execute the program, in its words; empty where it could."""
        if not any(line.startswith("mpirun was unable to start") for line in self._lines):
            return ""
        return next((line.split(":", 1)[1].strip() for line in self._lines if "  Error:" in line), "")

    def _last_words(self) -> str:
        """The line that most likely says why: of the program's own, the first that speaks of an error, else the last.

        What follows a rule of dashes is mpirun's account of the end, which names no cause.
        """
        rule = next((i for i, line in enumerate(self._lines) if line.startswith("-" * 20)), None)
        lines = [line.strip() for line in self._lines if _tells(line)]
        own = [line.strip() for line in list(self._lines)[:rule] if _tells(line)]
        lines = own or lines
        if not lines:
            return ""
        telling = (w for w in lines if "No space left" in w or "error" in w.lower() or "fail" in w.lower())
        return f": {next(telling, lines[-1])[:200]}"


def _tells(line: str) -> bool:
    """Whether a line may say why a program ended. On a busy machine mpirun's daemon may execute its child before the
    parent has set the child's group, and warns of that."""
    return any(c.isalnum() for c in line) and "plm:rsh: Warning: setpgid" not in line


def until_end(pid: int, limit_s: float, stop: threading.Event) -> bool:
    """Whether the child `pid` ended before the limit and before `stop` was set. It is not collected.

    A pidfd becomes readable the moment the process ends; Popen.wait with a timeout looks only every 50 ms,
    which would show in the times of short programs.
    """
    deadline = time.monotonic() + limit_s
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
            if poll.poll(min(left, _CHECK_STOP_S) * 1000):
                return True
        return False
    finally:
        os.close(descriptor)


def transfer_ended(transfer: Transfer, limit_s: float, stop: threading.Event) -> bool:
    """Whether the transfer ended before the limit and before `stop` was set."""
    deadline = time.monotonic() + limit_s
    while (left := deadline - time.monotonic()) > 0 and not stop.is_set():
        if transfer.ended(min(left, _CHECK_STOP_S)):
            return True
    return False


def why_ended(limit_s: float, stop: threading.Event) -> str:
    """Why `until_end` or `transfer_ended` said no."""
    return (
        "was stopped with the run" if stop.is_set() else f"did not end within {limit_s:g} s and was stopped"
    )


def _how(status: int) -> str:
    if status < 0:
        status = 128 - status
    if status > 128:
        try:
            return f"was ended by {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"ended with status {status}"
