"""Ranks as threads of a test, for `waystage.io`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Threads:
    """A communicator whose ranks are threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=120)
        self.size = size
        self.slots: list[Any] = [None] * size

    def rank_of(self, rank: int) -> Rank:
        return Rank(self, rank)


class Rank:
    """One rank of `Threads`."""

    def __init__(self, threads: Threads, rank: int) -> None:
        self._threads, self.rank, self.size = threads, rank, threads.size

    def allgather(self, sendobj: Any) -> list[Any]:
        self._threads.slots[self.rank] = sendobj
        self._threads.barrier.wait()
        found = list(self._threads.slots)
        self._threads.barrier.wait()
        return found

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.allgather(obj)[root]


def ranks(size: int, run: Callable[[Rank], Any]) -> list[Any]:
    """What `run` returns at every rank."""
    threads = Threads(size)
    with ThreadPoolExecutor(size) as pool:
        return [one.result(150) for one in [pool.submit(run, threads.rank_of(rank)) for rank in range(size)]]
