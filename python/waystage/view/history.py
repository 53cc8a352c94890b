"""Frames of the last hours in bounded memory.

Arrives: a whole frame now and then, deltas in between.
Leaves: the frame of any time; loads by class as series.
Must not know: events, clocks, HTTP.

Frames are kept in blocks: a whole frame, then deltas of a minute, compressed. Where the bound is reached, the oldest
blocks become coarser, to steps of 10 s and then of a minute, before they are dropped. A recorded run begins with shorter
steps.
"""

from __future__ import annotations

import bisect
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable

from waystage.events import CLASSES
from waystage.view.frames import Frame, Row, copy, decode, encode, merge

BYTES = 64 << 20
"""Of compressed blocks."""

BLOCK_MS, BLOCK_BYTES = 60_000, 2 << 20
"""Of one block: its time, and its size before compression."""

STEPS_MS = (1_000, 10_000, 60_000)
"""Resolution of a block at first, and of one that had to become coarser."""

Steps = tuple[int, int, int]

SERIES = 90_000
"""Points of a series: one a second for a little more than a day."""

LEVEL = 6
"""Of compression."""

UNPACKED = 4
"""Blocks kept uncompressed for a reader that goes back and forth."""


class Block:
    """Frames from `start` to `end`, in ms. While it is open, all are there; what it keeps, one of each second and
    compressed, is made on the way, so that no frame waits for the work of a minute."""

    def __init__(self, whole: Frame, step: int = STEPS_MS[0]) -> None:
        self.start = self.end = whole.t
        self._first_step = step
        self.step = 0
        self.frames: list[bytes] = [encode(whole)]
        self.size = len(self.frames[0])
        self._second: Frame | None = None
        self._compressor = zlib.compressobj(LEVEL)
        self.packed = self._compressor.compress(self.frames[0])

    def append(self, delta: Frame, data: bytes) -> None:
        self.frames.append(data)
        self.size += len(data)
        self.end = delta.t
        second, step = self._second, self._first_step
        if second is not None and not delta.whole and delta.t // step == second.t // step:
            merge(second, delta)
        else:
            self._pack()
            self._second = copy(delta)

    def close(self) -> None:
        """No frame follows."""
        self._pack()
        self.packed += self._compressor.flush()
        self.step, self.size, self.frames = self._first_step, len(self.packed), []

    def _pack(self) -> None:
        if self._second is not None:
            self.packed += self._compressor.compress(b"\n" + encode(self._second))
            self._second = None

    def coarsen(self, step: int) -> None:
        """Merge the deltas of each `step` ms of a closed block."""
        frames = self.unpack()
        merged: list[Frame] = []
        for delta in map(decode, frames[1:]):
            if merged and not delta.whole and delta.t // step == merged[-1].t // step:
                merge(merged[-1], delta)
            else:
                merged.append(delta)
        self.step = step
        self.frames = []
        self.packed = zlib.compress(b"\n".join([frames[0], *map(encode, merged)]), LEVEL)
        self.size = len(self.packed)

    def unpack(self) -> list[bytes]:
        return self.frames or zlib.decompress(self.packed).split(b"\n")


class History:
    """`whole` gives a whole frame when a new block begins; `add` and `at` are for one thread."""

    def __init__(
        self, whole: Callable[[], Frame], *, most_bytes: int = BYTES, steps_ms: Steps = STEPS_MS
    ) -> None:
        self._whole = whole
        self._steps = steps_ms
        self._most_bytes = most_bytes
        self._blocks: list[Block] = []
        self._size = 0
        self._unpacked: OrderedDict[int, list[bytes]] = OrderedDict()
        self._times = array("q")
        self._loads = {name: array("f") for name in CLASSES}
        self.dropped_before = 0

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last time, ms; None before the first frame."""
        return (self._blocks[0].start, self._blocks[-1].end) if self._blocks else None

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return self._size

    def add(self, delta: Frame, data: bytes, loads: dict[str, float]) -> None:
        """The next frame with its encoding, and the load of each class in bit/s."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or delta.whole or delta.t - last.start >= BLOCK_MS or last.size >= BLOCK_BYTES:
            self._close()
            block = Block(self._whole(), self._steps[0])
            block.start = block.end = delta.t
            self._blocks.append(block)
            self._size += block.size
        else:
            before = last.size
            last.append(delta, data)
            self._size += last.size - before
        self._note_loads(delta.t, loads)
        while self._size > self._most_bytes and self._shrink():
            pass

    def at(self, time_ms: int) -> Frame | None:
        """The frame of that time, or of the first or last there is; None before the first frame."""
        if not self._blocks:
            return None
        starts = [block.start for block in self._blocks]
        block = self._blocks[max(0, bisect.bisect_right(starts, time_ms) - 1)]
        frames = block.frames or self._cached(block)
        found = decode(frames[0])
        found.t = block.start
        for data in frames[1:]:
            delta = decode(data)
            if delta.t > time_ms:
                break
            merge(found, delta)
        return found

    def series(self, start_ms: int, end_ms: int, points: int) -> Row:
        """Loads of classes, bit/s: the mean of each of at most `points` equal parts of the time."""
        low, high = bisect.bisect_left(self._times, start_ms), bisect.bisect_right(self._times, end_ms)
        step = max(1, -(-(high - low) // max(1, points)))
        found: Row = {"t": [self._times[min(i + step, high) - 1] for i in range(low, high, step)]}
        for name, values in self._loads.items():
            found[name] = [
                round(sum(part) / len(part))
                for i in range(low, high, step)
                if (part := values[i : min(i + step, high)])
            ]
        return found

    # -- inside -----------------------------------------------------------------------------------------

    def _note_loads(self, time_ms: int, loads: dict[str, float]) -> None:
        if self._times and time_ms - self._times[-1] < self._steps[0]:
            return
        self._times.append(time_ms)
        for name, values in self._loads.items():
            values.append(loads.get(name, 0.0))
        if len(self._times) > SERIES + 3600:
            del self._times[:3600]
            for values in self._loads.values():
                del values[:3600]

    def _close(self) -> None:
        if self._blocks and self._blocks[-1].frames:
            block = self._blocks[-1]
            self._size -= block.size
            block.close()
            self._size += block.size

    def _cached(self, block: Block) -> list[bytes]:
        key = id(block)
        if key not in self._unpacked:
            self._unpacked[key] = block.unpack()
            while len(self._unpacked) > UNPACKED:
                self._unpacked.popitem(last=False)
        self._unpacked.move_to_end(key)
        return self._unpacked[key]

    def _shrink(self) -> bool:
        """Make a block of the older half coarser, of the oldest quarter again; else drop the oldest. False: none left."""
        closed = self._blocks[:-1]
        if not closed:
            return False
        self._unpacked.clear()
        for part, before, step in ((2, *self._steps[:2]), (4, *self._steps[1:])):
            found = next((block for block in closed[: len(closed) // part] if block.step == before), None)
            if found is not None:
                self._size -= found.size
                found.coarsen(step)
                self._size += found.size
                return True
        oldest = self._blocks.pop(0)
        self._size -= oldest.size
        self.dropped_before = self._blocks[0].start
        return True
