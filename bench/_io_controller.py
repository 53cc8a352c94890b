"""A controller with its flow agent, beside a benchmark of collective I/O, which may be killed and is started again.

Arrives: a folder. Leaves: the environment by which aggregators reach the agent. Must not know: what is measured.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from waystage.bench import BenchError

START_S = 60


class Controller:
    """`waystage controller --policy elastic-io`, from the beginning of the context to its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._log = folder / "controller.log"
        self.environment = {"WAYSTAGE_FLOWS": str(folder / "flows.sock")}

    def __enter__(self) -> Self:
        ready = self._folder / "ready"
        self._start("--ready-file", str(ready))
        until = time.monotonic() + START_S
        while not ready.exists():
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                self._end()
                raise BenchError(f"no controller: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def kill(self, pause_s: float) -> int:
        """Kill it; `look` starts it again after `pause_s`. How many were killed."""
        if self._process is None:
            return 0
        self._end()
        self._start_at = time.monotonic() + pause_s
        return 1

    def look(self) -> None:
        """Start it where it was killed and its pause is over. Raises BenchError where it has ended by itself."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self._start()
        elif self._process.poll() is not None:
            raise BenchError(f"the controller ended: {self._log.read_text(errors='replace')[-500:]}")

    def _start(self, *more: str) -> None:
        words = [sys.executable, "-m", "waystage", "controller", "--policy", "elastic-io", "--quiet"]
        words += ["--listen", f"unixsock-stream/{self._folder}/backplane.sock"]
        words += ["--state-dir", str(self._folder / "state"), *more]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
