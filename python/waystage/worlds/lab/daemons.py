"""The lab's daemons: started with an order, reporting once, recorded for later commands.

Arrives: a module to run, its order as bytes; names, processes, logs.
Leaves: a daemon that has reported that it is ready; a record of daemons in a file.
Must not know: what the daemons do.

The order goes to the daemon's standard input with its length before it; the daemon answers with one line on its
standard output, `ready` or `error: ...`. `start` is the parent's side; `read_order` and `report` are the daemon's.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystage.outputs import write_whole
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.processes import ProcessId

READY = "ready"


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon as the record in a lab's run directory keeps it."""

    name: str
    process: ProcessId
    log: str

    @classmethod
    def read_all(cls, path: Path) -> list[Daemon]:
        """Empty where there is no record, or none that can be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[cls])  # type: ignore[valid-type]
        except (OSError, msgspec.MsgspecError):
            return []

    @classmethod
    def write_all(cls, path: Path, daemons: Sequence[Daemon]) -> None:
        write_whole(path, msgspec.json.encode(daemons))


def start(module: str, order: bytes, log: Path, *, name: str, limit_s: float) -> subprocess.Popen[bytes]:
    """`python -m module` in a new session, once it is ready; its standard input is open, its errors are in `log`.

    Raises LabError with its report or its last words where it is not; then it has been killed.
    """
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            start_new_session=True,
        )
    try:
        line = _report_of(process, order, limit_s)
        if line != READY:
            raise LabError(f"{name}: {line.removeprefix('error: ') if line else _no_report(log, limit_s)}")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _report_of(process: subprocess.Popen[bytes], order: bytes, limit_s: float) -> str:
    """The first line of its output; empty where none comes in time."""
    assert process.stdin is not None and process.stdout is not None, "both were asked for as pipes"
    try:
        process.stdin.write(len(order).to_bytes(4, "big") + order)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended; its last words are in the log
    readable, _, _ = select.select([process.stdout], [], [], limit_s)
    line = process.stdout.readline().decode(errors="replace").strip() if readable else ""
    process.stdout.close()
    return line


def _no_report(log: Path, limit_s: float) -> str:
    words = log.read_text(errors="replace").strip().splitlines()
    return f"its process did not start: {words[-1] if words else f'no report within {limit_s:g} s'}"


def read_order() -> bytes:
    """The order of this daemon, from standard input."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    return sys.stdin.buffer.read(size)


def report(line: str) -> int:
    """Report to the process that started this daemon, and close the pipe; 1, the status of a daemon that failed."""
    try:
        os.write(1, line.encode() + b"\n")
    except BrokenPipeError:
        pass  # the parent was killed meanwhile
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return 1
