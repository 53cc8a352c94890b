"""Runs in parallel, each in a process that can be ended.

Arrives: a loaded sweep and combinations.
Leaves: finished runs, as they finish; no process, however it ends.
Must not know: what is in a run, where results are kept.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from waystage.simulate.combinations import Combination
from waystage.simulate.loading import Loaded
from waystage.simulate.records import FinishedRun
from waystage.simulate.worker import HEAD, send

Done = Callable[[Combination, FinishedRun], None]
Advance = Callable[[Combination, float], None]
"""Called with a combination and the simulated time it has reached."""

CHUNK = 1 << 16
LAST_WORDS = 2000
"""Bytes of a crashed worker's standard error that are looked at."""


class Workers:
    """At most `processes` at a time; a run that takes longer than `limit_s` is ended and failed."""

    def __init__(self, loaded: Loaded, processes: int, limit_s: float) -> None:
        self._loaded = loaded
        self._processes = processes
        self._limit_s = limit_s

    def run(self, combinations: Iterable[Combination], done: Done, advance: Advance) -> None:
        """Calls `done` for every combination, in the order in which they finish."""
        waiting = iter(combinations)
        live: dict[int, _Worker] = {}
        with selectors.DefaultSelector() as selector:
            try:
                following = next(waiting, None)
                while following is not None or live:
                    while following is not None and len(live) < self._processes:
                        worker = _Worker(self._loaded, following)
                        live[worker.descriptor] = worker
                        selector.register(worker.descriptor, selectors.EVENT_READ)
                        following = next(waiting, None)
                    for key, _ in selector.select(timeout=self._patience(live.values())):
                        worker = live[key.fd]
                        for kind, value in worker.read():
                            if kind == "at":
                                advance(worker.which, value)
                            elif kind == "done":
                                done(worker.which, value)
                                if following is None:
                                    worker.retire()
                                else:
                                    worker.take(following)
                                    following = next(waiting, None)
                        if worker.ended:
                            selector.unregister(key.fd)
                            del live[key.fd]
                            cause = worker.close()
                            if cause:
                                done(worker.which, FinishedRun(status="failed", cause=cause))
                    for worker in list(live.values()):
                        if worker.seconds() > self._limit_s:
                            selector.unregister(worker.descriptor)
                            del live[worker.descriptor]
                            worker.kill()
                            done(worker.which, FinishedRun(status="failed", cause=self._too_long()))
            finally:
                for worker in live.values():
                    worker.kill()

    def _patience(self, workers: Iterable[_Worker]) -> float:
        left = [self._limit_s - worker.seconds() for worker in workers]
        return max(0.01, min([*left, 60.0]))

    def _too_long(self) -> str:
        return (
            f"was ended after {self._limit_s:g} s: one of its algorithms may loop; "
            "if it does not, raise limit_s in the sweep"
        )


class _Worker:
    """A process and the combination it works on."""

    def __init__(self, loaded: Loaded, which: Combination) -> None:
        self.which = which
        self.ended = False
        self._retired = False
        self._since: float | None = None
        self._buffer = bytearray()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "waystage.simulate.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is the parent's affair: it keeps what is finished and then ends the workers.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.descriptor = self._process.stdout.fileno()
        self._first: list[object] = [sys.path, loaded, which]
        self._tell()

    def _tell(self) -> None:
        assert self._process.stdin is not None
        try:
            for message in self._first:
                send(self._process.stdin, message)
        except BrokenPipeError:
            pass  # it has ended; `read` sees that
        self._first = []

    def seconds(self) -> float:
        """How long it has worked on its combination; zero while it starts."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def take(self, which: Combination) -> None:
        self.which = which
        self._since = time.monotonic()
        self._first = [which]
        self._tell()

    def retire(self) -> None:
        """No more work: it ends by itself."""
        assert self._process.stdin is not None
        self._retired = True
        self._since = None
        self._process.stdin.close()

    def read(self) -> Iterator[tuple[str, Any]]:
        """Messages that have arrived whole; sets `ended` at the end of the stream."""
        data = os.read(self.descriptor, CHUNK)
        if not data:
            self.ended = True
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            (length,) = HEAD.unpack_from(self._buffer)
            if len(self._buffer) < HEAD.size + length:
                return
            kind, value = pickle.loads(self._buffer[HEAD.size : HEAD.size + length])
            del self._buffer[: HEAD.size + length]
            if kind == "ready":
                self._since = time.monotonic()
            else:
                yield kind, value

    def close(self) -> str:
        """Wait for its end; why it ended, where it should not have."""
        status = self._process.wait()
        words = self._last_words()
        self._shut()
        if self._retired:
            return ""
        if status < 0:
            return f"its process was killed by {signal.Signals(-status).name}: it may have run out of memory"
        return f"its process ended with status {status}: {words or 'it said nothing'}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._shut()

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LAST_WORDS))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _shut(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
