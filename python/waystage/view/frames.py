"""Frames: what a page shows at one time, whole or as the difference from the frame before.

Arrives: rows by section and key.
Leaves: frames as JSON; a whole frame with a delta merged in.
Must not know: events, HTTP.

A row replaces the row of its key entirely, so merging a delta twice gives the same frame.
"""

from __future__ import annotations

from typing import Any

import msgspec

Row = dict[str, Any]

EVENTS_SHOWN = 200
"""Lines of the event stream that a whole frame has; a delta has at most a quarter."""


class Frame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`t` is in ms since 1970, or since the start of a simulated run. `set` and `gone` are by section."""

    seq: int = 0
    t: int = 0
    whole: bool = False
    topology: Row | None = None
    set: dict[str, dict[str, Row]] = {}
    gone: dict[str, list[str]] = {}
    events: list[Row] = []
    counts: dict[str, int] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    return _encoder.encode(frame)


def decode(data: bytes) -> Frame:
    """The inverse of `encode`, for bytes of this process."""
    return _decoder.decode(data)


def copy(frame: Frame) -> Frame:
    """One that `merge` may change while `frame` stays; the rows, which are never changed, are shared."""
    return Frame(
        seq=frame.seq,
        t=frame.t,
        whole=frame.whole,
        topology=frame.topology,
        set={section: dict(rows) for section, rows in frame.set.items()},
        gone={section: list(keys) for section, keys in frame.gone.items()},
        events=frame.events,
        counts=frame.counts,
    )


def merge(base: Frame, delta: Frame) -> None:
    """Bring `base`, a frame of either kind, up to the time of `delta`."""
    if delta.whole:
        base.topology, base.set, base.gone, base.events = None, {}, {}, []
        base.whole = True
    base.seq, base.t = delta.seq, delta.t
    if delta.topology is not None:
        base.topology = delta.topology
    for section, keys in delta.gone.items():
        rows = base.set.get(section, {})
        for key in keys:
            rows.pop(key, None)
        if not base.whole:
            base.gone[section] = [*base.gone.get(section, ()), *keys]
    for section, rows in delta.set.items():
        base.set.setdefault(section, {}).update(rows)
        if section in base.gone:
            base.gone[section] = [key for key in base.gone[section] if key not in rows]
    base.events = [*base.events, *delta.events][-EVENTS_SHOWN:]
    base.counts = delta.counts or base.counts
