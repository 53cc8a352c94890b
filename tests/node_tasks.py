"""Tasks that workers of tests run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def double(here: Any, value: int) -> int:
    return 2 * value


def slow(here: Any, folder: str, value: int, seconds: float) -> int:
    """Say that it runs, work, say that it has ended."""
    Path(folder, f"began-{value}-{os.getpid()}").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        here.progress("waiting", 1 - (end - time.monotonic()) / seconds)
        time.sleep(0.02)
    Path(folder, f"ended-{value}").touch()
    return value


def fails(here: Any, text: str) -> None:
    raise ValueError(text)


def fails_for_a_while(here: Any, folder: str) -> int:
    """ESTALE at the first two attempts."""
    attempt = len(list(Path(folder).iterdir()))
    Path(folder, f"attempt-{attempt}").touch()
    if attempt < 2:
        raise OSError(116, "Stale file handle", folder)
    return attempt


def kills_its_worker(here: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills_after_its_file(here: Any, path: str) -> str:
    """Make a file whole, and be killed before anything is reported, the first time."""
    fresh = not os.path.exists(path)
    part = f"{path}.part"
    Path(part).write_text("whole")
    os.rename(part, path)
    if fresh:
        os.kill(os.getpid(), signal.SIGKILL)
    return Path(path).read_text()


def has_imported(here: Any, module: str) -> bool:
    return module in sys.modules
