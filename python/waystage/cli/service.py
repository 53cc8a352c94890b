"""Log and ready file of subcommands that serve until a signal.

Arrives: paths, lines.
Leaves: a log of mode 0600, one line an event; a ready file, written atomically.
Must not know: which service it is.
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
    """Open the log at `path`, created with mode 0600. Raises UserError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"the log {path} cannot be written: {error.strerror}") from None
    with open(descriptor, "a", encoding="utf-8") as file:
        yield file


def write_line(log: TextIO, text: str) -> None:
    """Write a line with the time."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # Text of the peer must not look like our own lines.
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    log.write(f"{now} {clean}\n")


def write_ready(path: Path, text: str) -> None:
    """Write the service's address to the ready file. Raises UserError."""
    # Who waits for the file never sees it empty.
    try:
        write_whole(path, text.encode("ascii"))
    except OSError as error:
        raise UserError(f"cannot write --ready-file {path}: {error.strerror}") from None
