"""What subcommands share that serve until they are told to end: a log of their own, a file that says where they listen.

Arrives: paths, lines.
Leaves: a log that its owner alone reads, a line for each thing that happened; a file that is never seen empty.
Must not know: who serves what.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from waystage.cli.common import UserError
from waystage.outputs import write_whole


@contextlib.contextmanager
def appended_log(path: Path) -> Iterator[TextIO]:
    """The log at `path`, of mode 0600 where it is made. Raises UserError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"the log {path} cannot be written: {error.strerror}") from None
    with open(descriptor, "a", encoding="utf-8") as file:
        yield file


def write_line(log: TextIO, text: str) -> None:
    """A line with the time."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # What the other end says must not look like lines of ours.
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    log.write(f"{now} {clean}\n")


def write_ready(path: Path, text: str) -> None:
    """Say in a file that the service listens, and where. Raises UserError."""
    # Who waits for the file never sees it empty.
    try:
        write_whole(path, text.encode("ascii"))
    except OSError as error:
        raise UserError(f"cannot write --ready-file {path}: {error.strerror}") from None
