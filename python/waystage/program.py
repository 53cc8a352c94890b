"""Somebody's program, run to its end with more in its environment.

Arrives: a command line, what to add to the environment.
Leaves: the program's exit status, as a shell gives it.
Must not know: why the program is run.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence


def preloading(library: str) -> str:
    """The value of LD_PRELOAD that loads `library` before what the user loads already."""
    before = os.environ.get("LD_PRELOAD")
    return f"{library}:{before}" if before else library


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda process: None,
) -> int:
    """Its exit status; 128 and the signal's number where one ended it. Raises OSError where it cannot be started.

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
