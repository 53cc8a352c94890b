"""A subscriber's record of each source: detects duplicates and gaps, and restores order.

Arrives: events with source, number, and the number of the previous event of the type.
Leaves: a verdict on each; after a replay, the events to deliver in order.
Must not know: Zenoh, threads, queues, the contents of events.

A source is `live` (in order), `held` (after a gap, events wait for the replay) or `behind` (after a full queue,
events are dropped, since the replay repeats them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from waystage.events import Envelope

HELD_MAX = 4096
"""Limit of events of one source that wait for its replay; later ones are left for the next replay."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """`previous` is None where a foreign publisher does not number by type: then no gap can be seen."""

    envelope: Envelope
    type: str
    previous: int | None


class Delivery(NamedTuple):
    """What a replay brought: events in order, the types of which something is lost, and whether another replay must
    be requested."""

    events: list[Arrival]
    lost: list[str]
    again: bool


class Verdict(Enum):
    DELIVER = "deliver"
    DUPLICATE = "duplicate"
    GAP = "gap"
    WAITS = "waits"
    DEFERRED = "deferred"


_DELIVER = Verdict.DELIVER
"""Of almost every event: the name of a member is looked up each time."""


class _Source:
    __slots__ = ("asked", "behind", "held", "last", "newest")

    def __init__(self, last: dict[str, int] | None = None) -> None:
        self.last = last or {}
        self.newest = max(self.last.values(), default=0)
        self.held: list[Arrival] | None = None
        self.behind = False
        self.asked = 0
        """Events up to this number were published before the replay was requested."""


class Inbox:
    """`strict`: a source never heard of is expected from its first event, not from where it is found.

    `whole`: every type is wanted, so that the next number must be the next event: then order holds across types even
    where a link was cut. With some types only, it holds for each type by itself, and across them unless one was lost.
    Not thread-safe: its owner holds a lock.
    """

    def __init__(self, cursors: dict[str, dict[str, int]], strict: bool, whole: bool = False) -> None:
        self._strict, self._whole = strict, whole
        self._sources = {name: _Source(dict(last)) for name, last in cursors.items()}

    def last(self, source: str) -> dict[str, int]:
        """Type -> number of the last event of that source accepted."""
        found = self._sources.get(source)
        return dict(found.last) if found else {}

    def offer(self, item: Arrival, room: bool) -> Verdict:
        """Judge an event that just came; `room` says whether the queue could take it."""
        envelope, name, previous = item.envelope, item.type, item.previous
        seq = envelope.seq
        source = self._sources.get(envelope.source)
        if source is None:
            source = self._sources[envelope.source] = _Source()
        last = source.last.get(name)
        if last is not None and seq <= last:
            return Verdict.DUPLICATE
        if source.behind:
            return Verdict.DEFERRED
        if source.held is not None:
            if len(source.held) >= HELD_MAX:
                source.behind = True
                return Verdict.DEFERRED
            source.held.append(item)
            return Verdict.WAITS
        if previous is not None and self._gap(source, last, seq, previous):
            source.held = [item]
            return Verdict.GAP
        if not room:
            source.behind = True
            return Verdict.DEFERRED
        source.last[name] = seq
        if seq > source.newest:
            source.newest = seq
        return _DELIVER

    def hold(self, name: str) -> bool:
        """A replay of this source begins: what arrives from now on waits for it.

        True where something is known to be missing: a gap was found, or events were not taken.
        """
        source = self._sources.setdefault(name, _Source())
        missing = source.behind or bool(source.held)
        source.held = source.held or []
        source.behind = False
        source.asked = max((max(a.envelope.seq, a.previous or 0) for a in source.held), default=0)
        return missing

    def incomplete(self, name: str) -> bool:
        """Whether something is missing among what waits for the replay of this source: it came while that was
        asked for."""
        return self.has_hole(name) or self._sources[name].behind

    def has_hole(
        self, name: str, replayed: Iterable[Arrival] = (), gone: Mapping[str, int] | None = None
    ) -> bool:
        """Whether an event of this source is missing before one that waits or was replayed, and is not `gone`."""
        source = self._sources[name]
        last = dict(source.last)
        for type_name, seq in (gone or {}).items():
            last[type_name] = max(seq, last.get(type_name, 0))
        for item in sorted((*replayed, *(source.held or [])), key=lambda a: a.envelope.seq):
            known = last.get(item.type)
            if known is not None and item.envelope.seq <= known:
                continue
            if (item.previous or 0) > (known or 0) and (known is not None or self._strict):
                return True
            last[item.type] = item.envelope.seq
        return False

    def next(
        self,
        name: str,
        replayed: list[Arrival],
        gone: Mapping[str, int] | None = None,
        *,
        give_up: bool = False,
    ) -> Delivery:
        """After a replay: what to deliver now, in order.

        `gone`: the publisher holds wanted events of these types, up to these numbers, no longer; what came while
        the replay was asked for may fill that hole. Call with `[]` until the answer is empty: then the source is
        live again, or `again` says to request another replay. `give_up`: no other replay can be had.
        """
        source = self._sources[name]
        held, source.held = source.held or [], []
        by_seq = {a.envelope.seq: a for a in (*replayed, *held)}
        gone = gone or {}
        answered = dict(gone)
        for item in replayed:
            answered[item.type] = max(answered.get(item.type, 0), item.envelope.seq)
        newest_answered = max(answered.values(), default=0)
        deliver: list[Arrival] = []
        lost: dict[str, None] = {}
        again = False
        for seq in sorted(by_seq):
            item = by_seq[seq]
            last = source.last.get(item.type)
            if last is not None and seq <= last:
                continue
            previous = item.previous or 0
            # A type never heard of begins where it is found, unless its beginning was wanted and is gone.
            unseen = previous > (last or 0)
            hole = unseen and (last is not None or gone.get(item.type, 0) >= previous)
            late = unseen and (hole or self._strict)
            late &= previous > max(source.asked, answered.get(item.type, 0))
            if self._whole and item.previous is not None and self._gap(source, last, seq, previous):
                late |= seq - 1 > max(source.asked, newest_answered)
            if late and not give_up:
                # What is missing was published after this replay was made, and lost on its way.
                source.held = [by_seq[later] for later in sorted(by_seq) if later >= seq]
                again = True
                break
            if hole:
                lost[item.type] = None
            source.last[item.type] = seq
            source.newest = max(source.newest, seq)
            deliver.append(item)
        for type_name, seq in () if again else gone.items():
            if seq > source.last.get(type_name, 0):
                source.last[type_name] = seq
                lost[type_name] = None
        source.newest = max(source.last.values(), default=0)
        if not deliver and not source.behind and not again:
            source.held = None
        return Delivery(deliver, list(lost), again)

    def behind(self) -> list[str]:
        """Sources that must be replayed once there is room."""
        return [name for name, source in self._sources.items() if source.behind]

    def forget(self, name: str) -> None:
        """A live subscription need not remember a source that is gone."""
        source = self._sources.get(name)
        if source is not None and source.held is None and not source.behind:
            del self._sources[name]

    def _gap(self, source: _Source, last: int | None, seq: int, previous: int) -> bool:
        if self._whole and (source.last or self._strict):
            return seq > source.newest + 1
        if last is None:
            return self._strict and previous > 0
        return previous > last
