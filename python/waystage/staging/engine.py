"""An engine: the process that moves the data of one request, with the rights of its user.

Arrives: one JSON line on stdin, then end of file, which cancels.
Leaves: JSON lines on stdout: choices, progress, the end.
Must not know: the queue, other requests, root.

The stager tells it what to do only after it has noted the process in its queue, so that there is no engine that a
restarted stager does not know. The engine ends with its stager: the kernel kills it (PR_SET_PDEATHSIG), and end of file
on stdin ends it where the kernel does not.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from typing import IO, Any

import msgspec

from waystage.display import display
from waystage.staging.moves import Move, Stop, carry_out
from waystage.staging.requests import Choice

REPORT_S = 0.5
END_S = 5.0
"""How long a copy may take to end once it is cancelled."""

PERMANENT = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS, errno.EINVAL),
    }
)
"""Errors of a path that no time fixes."""

MOST_SPEC_BYTES = 4 << 20
MOST_TEXT = 2000


class Reports:
    """Writes to the stager; the stager is gone where that fails, and so is this engine then."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._due = 0.0

    def say(self, what: str, **values: Any) -> None:
        try:
            self._stream.write(json.dumps({"t": what, **values}).encode("ascii") + b"\n")
            self._stream.flush()
        except (OSError, ValueError):
            os._exit(1)

    def choose(self, choice: Choice) -> None:
        self.say("choice", choice=msgspec.to_builtins(choice))

    def progress(self, counts: dict[str, int]) -> None:
        """Report counts, at most every `REPORT_S`."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + REPORT_S
            self.say("progress", counts=counts)


def preload() -> None:
    """Import what an engine may need, while the interpreter's files can still be read."""
    import encodings.idna  # noqa: F401

    import waystage._native
    import waystage.staging.far
    import waystage.task  # noqa: F401


def main() -> int:
    """One request, from stdin to stdout; the exit status says only whether it was reported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the stager's terminal is for the stager
    stop = threading.Event()
    with open(0, "rb", closefd=False) as orders, open(1, "wb", closefd=False) as answers:
        line = orders.readline(MOST_SPEC_BYTES)
        if not line.endswith(b"\n"):
            return 1
        reports = Reports(answers)
        threading.Thread(target=_listen, args=(orders, stop), daemon=True).start()
        try:
            move = msgspec.convert(json.loads(line), Move)
            ended = carry_out(move, reports, stop.is_set)
            reports.say("ended", **ended)
        except Stop:
            reports.say("ended", kind="cancelled", text="cancelled")
        except Exception as error:
            reports.say("ended", kind=_kind(error), text=_sentence(error)[:MOST_TEXT])
            if os.environ.get("WAYSTAGE_DEBUG"):
                raise
        os._exit(0)


def _listen(orders: IO[bytes], stop: threading.Event) -> None:
    orders.read(1)
    stop.set()
    time.sleep(END_S)
    os._exit(1)


def _kind(error: Exception) -> str:
    kind = getattr(error, "kind", None)
    if isinstance(kind, str):
        return kind
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "no-space"
        return "refused" if error.errno in PERMANENT else "failed"
    module = type(error).__module__
    return "ssh" if module == "waystage.wan.errors" else "internal"


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{display(os.fsdecode(error.filename))}: " if error.filename else ""
        return f"{where}{error.strerror}"
    if getattr(error, "kind", None) or _kind(error) == "ssh":
        return str(error)
    return f"internal error, {type(error).__name__}: {error}"
