"""What a server shows: a model with its history, fed by events.

Arrives: envelopes from any thread; the time.
Leaves: encoded deltas, whole frames, the frame of an earlier time.
Must not know: HTTP, where events come from.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from waystage.events import Envelope
from waystage.view.frames import Frame, Row, encode
from waystage.view.history import BYTES, STEPS_MS, History, Steps
from waystage.view.model import ViewModel

Mode = Literal["live", "run", "recorded"]

MARKS = 1000
"""Sets of a run named on the time line."""


class About(msgspec.Struct, kw_only=True):
    """`mode`: `live` (a site), `run` (in progress) or `recorded`. `epoch`: times are since 1970, not since a start."""

    title: str
    mode: Mode
    epoch: bool = True
    note: str = ""


class Feed:
    """Thread-safe: envelopes may come from one thread while frames are taken in another."""

    def __init__(
        self,
        about: About,
        *,
        model: ViewModel | None = None,
        history_bytes: int = BYTES,
        steps_ms: Steps = STEPS_MS,
    ) -> None:
        self.about = about
        self.model = model if model is not None else ViewModel()
        self.marks: list[Row] = []
        self.by_type: dict[str, int] = {}
        self._lock = threading.RLock()
        self._now = 0
        self.history = History(self._whole_now, most_bytes=history_bytes, steps_ms=steps_ms)

    def apply(self, items: Iterable[Envelope], *, known: bool = False) -> int:
        """Fold events, or only show those that the state has; their number."""
        items, by_type = tuple(items), self.by_type
        with self._lock:
            self.model.apply_all(items, known=known)
            for kind, count in Counter([type(item.event) for item in items]).items():
                by_type[kind.__name__] = by_type.get(kind.__name__, 0) + count
        return len(items)

    def change(self, change: Callable[[ViewModel], None]) -> None:
        """Change the model between two events."""
        with self._lock:
            change(self.model)

    def mark(self, time_ms: int, text: str) -> None:
        """Name what begins here, such as a set of a run."""
        with self._lock:
            if len(self.marks) < MARKS:
                self.marks.append({"t": time_ms, "text": text})

    def take(self, time_ns: int) -> tuple[Frame, bytes] | None:
        """The next delta, which is now part of the history; None where nothing has changed."""
        with self._lock:
            self._now = max(self._now, time_ns)
            frame = self.model.take(self._now)
            if frame is None:
                return None
            data = encode(frame)
            self.history.add(frame, data, self.model.rates_bps)
            return frame, data

    def whole(self) -> tuple[int, bytes]:
        """The number of the last delta, and the whole frame as of it."""
        with self._lock:
            frame = self._whole_now()
            return frame.seq, encode(frame)

    def at(self, time_ms: int) -> bytes | None:
        """The whole frame of an earlier time."""
        with self._lock:
            frame = self.history.at(time_ms)
            return None if frame is None else encode(frame)

    def timeline(self, points: int, start: int | None = None, end: int | None = None) -> dict[str, Any]:
        """The span of the history with its marks, and the load of each class between two times of it."""
        with self._lock:
            span = self.history.span
            if span is None:
                return {"span": None, "marks": [], "series": {"t": []}}
            low = span[0] if start is None else max(start, span[0])
            high = span[1] if end is None else min(end, span[1])
            series = self.history.series(low, high, points)
            return {"span": list(span), "marks": self.marks, "series": series}

    def hosts_at(self, switch: str) -> list[Row]:
        with self._lock:
            return self.model.hosts_at(switch)

    def _whole_now(self) -> Frame:
        return self.model.whole(self._now)
