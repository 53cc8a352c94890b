"""Runs a user's program with additions to its environment.

Arrives: a command line, additions to the environment.
Leaves: the exit status, as a shell reports it.
Must not know: why the program is run.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence


def preloading(library: str) -> str:
    """The value of LD_PRELOAD with `library` before the user's."""
    before = os.environ.get("LD_PRELOAD")
    return f"{library}:{before}" if before else library


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda process: None,
) -> int:
    """The exit status, or 128 plus the number of a fatal signal. Raises OSError if the program cannot be started.

    `started` is called with the process's id once it runs.
    """
    process = subprocess.Popen(command, env={**os.environ, **environment})
    started(process.pid)
    while True:
        try:
            status = process.wait()
            return status if status >= 0 else 128 - status
        except KeyboardInterrupt:
            # A terminal has interrupted the program too; SIGTERM reached this process alone. What it leaves is kept.
            process.send_signal(signal.SIGTERM)
