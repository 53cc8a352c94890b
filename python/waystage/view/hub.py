"""Gives frames to pages: each has a bounded queue, and a page that reads nothing is dropped.

Arrives: encoded deltas; whole frames on request.
Leaves: chunks of server-sent events for each page.
Must not know: events, HTTP, sockets.

Bytes of a frame are shared by all pages. A page that was away for a moment names the last frame that it has and gets
those after it, or a whole frame where they are no longer kept.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

KEPT, KEPT_BYTES = 100, 4 << 20
"""Deltas kept for pages that come back: ten seconds."""

QUEUE, QUEUE_BYTES = 100, 8 << 20
"""Of one page."""

PAGES = 256


class TooMany(Exception):
    """No more pages; the message says how many there are."""


class Page:
    """A reader. `get` waits; `dropped` says why it gets nothing more."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ready = asyncio.Event()
        self.dropped = ""
        self._last = False

    @property
    def finished(self) -> bool:
        """Whether everything up to the last chunk was taken."""
        return self._last and not self._chunks

    def put(self, chunk: bytes) -> None:
        if self.dropped:
            return
        if self._chunks and (len(self._chunks) >= QUEUE or self._size + len(chunk) > QUEUE_BYTES):
            self.drop(f"it has read nothing of the last {len(self._chunks)} frames")
            return
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._ready.set()

    def finish(self, chunk: bytes) -> None:
        """Put the last chunk."""
        self.put(chunk)
        self._last = True
        self._ready.set()

    def drop(self, reason: str) -> None:
        self.dropped = reason
        self._chunks.clear()
        self._ready.set()

    async def get(self, timeout_s: float) -> bytes:
        """The next chunks; empty after `timeout_s`, after the last one, or where the page is dropped."""
        if not self._chunks and not self.dropped and not self._last:
            self._ready.clear()
            try:
                await asyncio.wait_for(self._ready.wait(), timeout_s)
            except TimeoutError:
                return b""
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return data


class Hub:
    """For one event loop. `whole` gives the encoded whole frame as of the last delta, with its number."""

    def __init__(self, whole: Callable[[], tuple[int, bytes]], *, pages: int = PAGES) -> None:
        self._whole, self._most = whole, pages
        self._epoch = os.urandom(6).hex()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._pages: set[Page] = set()
        self._latest: tuple[int, bytes] | None = None
        self._end = b""
        self.dropped = self.refused = 0

    def __len__(self) -> int:
        return len(self._pages)

    def send(self, seq: int, data: bytes) -> None:
        """A delta, to every page."""
        chunk = self._chunk(seq, data)
        self._latest = None
        self._kept.append((seq, chunk))
        self._kept_bytes += len(chunk)
        while len(self._kept) > KEPT or (self._kept_bytes > KEPT_BYTES and len(self._kept) > 1):
            self._kept_bytes -= len(self._kept.popleft()[1])
        for page in self._pages:
            page.put(chunk)

    def join(self, last_id: str = "") -> Page:
        """A new page, or one that comes back. Raises TooMany."""
        if len(self._pages) >= self._most:
            self.refused += 1
            raise TooMany(f"{self._most} pages are open, which is the most: close one, or use --pages")
        page = Page()
        missed = self._since(last_id)
        if missed is None:
            if self._latest is None:
                seq, data = self._whole()
                self._latest = (seq, self._chunk(seq, data))
            missed = [self._latest[1]]
        for chunk in missed:
            page.put(chunk)
        if self._end:
            page.finish(self._end)
        self._pages.add(page)
        return page

    def leave(self, page: Page) -> None:
        self._pages.discard(page)
        self.dropped += bool(page.dropped)

    def finish(self, text: str) -> None:
        """Tell every page that no more frames follow, and why."""
        self._end = b"event: end\ndata: %s\n\n" % text.encode()
        for page in self._pages:
            page.finish(self._end)

    def close(self, reason: str) -> None:
        for page in self._pages:
            page.drop(reason)

    def _since(self, last_id: str) -> list[bytes] | None:
        """The chunks after that id; None where a whole frame is needed."""
        epoch, _, number = last_id.partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        seq = int(number)
        if not self._kept or seq < self._kept[0][0] - 1 or seq > self._kept[-1][0]:
            return None
        return [chunk for n, chunk in self._kept if n > seq]

    def _chunk(self, seq: int, data: bytes) -> bytes:
        """JSON has no line breaks, so a frame is one `data` line."""
        return b"id: %s-%d\ndata: %s\n\n" % (self._epoch.encode(), seq, data)
