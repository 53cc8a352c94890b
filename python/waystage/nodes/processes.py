"""Items worked on in processes of this machine, each of which can be ended.

Arrives: a function, what all items share, items.
Leaves: results, as they finish; no process, however it ends.
Must not know: what the function does, where results are kept.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar

from waystage.nodes.child import HEAD, send

S = TypeVar("S")
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Tick = Callable[[float], None]
"""Called by the function with how far it is, in its own unit."""

CHUNK = 1 << 16
LAST_WORDS = 2000
"""Bytes of a crashed process's standard error that are read."""

LOOK_S = 0.5
"""Between two calls of `look`."""


@dataclass(frozen=True)
class Died:
    """In place of a result: why an item's process ended without one."""

    cause: str


class Processes(Generic[S, I, R]):
    """At most `processes` at a time call `function(shared, item, tick)`, which they import by `path`; an item that takes
    longer than `limit_s` is ended, as `too_long` says."""

    def __init__(
        self,
        function: Callable[[S, I, Tick], R],
        shared: S,
        processes: int,
        limit_s: float,
        too_long: str,
        path: Sequence[str] | None = None,
    ) -> None:
        self._function, self._shared, self._processes = function, shared, processes
        self._limit_s, self._too_long = limit_s, too_long
        self._path = list(sys.path if path is None else path)

    def run(
        self,
        items: Iterable[I],
        done: Callable[[I, R | Died], None],
        advance: Callable[[I, float], None],
        look: Callable[[], None] | None = None,
    ) -> None:
        """Calls `done` for every item, in the order in which they finish; `advance` with what `tick` was called with.
        What `look`, called now and then, raises ends all processes."""
        waiting = iter(items)
        live: dict[int, _Worker] = {}
        with selectors.DefaultSelector() as selector:
            try:
                following = next(waiting, None)
                while following is not None or live:
                    if look is not None:
                        look()
                    while following is not None and len(live) < self._processes:
                        worker = _Worker([self._path, self._function, self._shared], following)
                        live[worker.descriptor] = worker
                        selector.register(worker.descriptor, selectors.EVENT_READ)
                        following = next(waiting, None)
                    patience = self._patience(live.values(), LOOK_S if look is not None else 60.0)
                    for key, _ in selector.select(timeout=patience):
                        worker = live[key.fd]
                        for kind, value in worker.read():
                            if kind == "at":
                                advance(worker.item, value)
                            elif kind == "done":
                                done(worker.item, value)
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
                                done(worker.item, Died(cause))
                    for worker in list(live.values()):
                        if worker.seconds() > self._limit_s:
                            selector.unregister(worker.descriptor)
                            del live[worker.descriptor]
                            worker.kill()
                            done(worker.item, Died(self._too_long))
            finally:
                for worker in live.values():
                    worker.kill()

    def _patience(self, workers: Iterable[_Worker], most: float) -> float:
        left = [self._limit_s - worker.seconds() for worker in workers]
        return max(0.01, min([*left, most]))


class _Worker:
    """A process and the item it works on."""

    def __init__(self, first: Sequence[object], item: Any) -> None:
        self.item = item
        self.ended = False
        self._retired = False
        self._since: float | None = None
        self._buffer = bytearray()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "waystage.nodes.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is the parent's affair: it keeps what is finished and then ends the workers.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.descriptor = self._process.stdout.fileno()
        self._first: list[object] = [*first, item]
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
        """How long it has worked on its item; zero while it starts."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def take(self, item: Any) -> None:
        self.item = item
        self._since = time.monotonic()
        self._first = [item]
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
