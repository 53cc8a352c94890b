"""One subscriber's queue: each requested event once, in order.

Arrives: events from the network, duplicated and reordered.
Leaves: to a callback, a queue or a caller: each control event once and in its source's order, or a `Missed` with the
lost ones.
Must not know: Zenoh; `Link` requests replays.

A full queue never blocks the network: the source is marked as behind, its later events are dropped, and its publisher
replays them when there is room again. Telemetry is dropped.
"""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from waystage.backplane.cursors import CursorStore
from waystage.backplane.inbox import Arrival, Inbox, Verdict
from waystage.backplane.outbox import ReplayEnd, ReplayRequest
from waystage.backplane.properties import Wanted
from waystage.events import Envelope, Event, new_event_id

log = logging.getLogger(__name__)

GONE_KEPT = 100_000
"""Publishers out of sight whose place is still known, in case only a link was cut; every `notify` is one."""

ASK_AGAIN_S, GIVE_UP_S = 0.5, 15.0
"""How often a publisher that does not answer is asked again, and when its events are given up: longer
than a router or a link takes to come back."""

Callback = Callable[[Envelope], object]

_DELIVER = Verdict.DELIVER


class Missed(Event, frozen=True, kw_only=True):
    """Told to one subscriber: control events of `publisher`, `*` for any, are lost to it. Take a snapshot of the
    state."""

    publisher: str
    types: tuple[str, ...] = ()


class SubscriptionStats(msgspec.Struct, kw_only=True):
    """Counts since the subscription began; `deferred` were fetched again later, `dropped` is telemetry."""

    received: int = 0
    delivered: int = 0
    duplicates: int = 0
    gaps: int = 0
    deferred: int = 0
    replayed: int = 0
    dropped: int = 0
    missed: int = 0
    callback_errors: int = 0


class Replayed(NamedTuple):
    """`whole`: the publisher itself answered. A journal may not have yet what the publisher still holds."""

    events: list[Arrival]
    end: ReplayEnd
    whole: bool


class Link(Protocol):
    """Requests a replay of events, with `journal` also of a controller's. None: no answer."""

    def replay(
        self, source: str, types: tuple[str, ...], request: ReplayRequest, journal: bool = True
    ) -> Replayed | None: ...

    def closed(self, subscription: Subscription) -> None: ...


class Subscription:
    """Iterate, `get`, or give a callback or queue. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        link: Link,
        wanted: Wanted,
        *,
        capacity: int,
        callback: Callback | None = None,
        queue: queues.Queue[Envelope] | None = None,
        cursors: CursorStore | None = None,
    ) -> None:
        self.wanted = wanted
        self.stats = SubscriptionStats()
        self._link, self._capacity, self._cursors = link, capacity, cursors
        self._since_ns = cursors.since_ns if cursors else time.time_ns()
        places = cursors.load() if cursors else {}
        self._whole = wanted.types == ("*",) and not wanted.fields
        self._inbox = Inbox(places, strict=cursors is not None, whole=wanted.types == ("*",))
        self._entries: deque[Arrival] = deque()
        self._taken: list[tuple[str, str, int]] = []
        self._to_recover: OrderedDict[str, None] = OrderedDict()
        self._gone: dict[str, None] = {}
        self._unanswered: dict[str, float] = {}
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """For those that take events, and for room."""
        self._to_repair = threading.Condition(lock)
        """For the thread that fetches what is missing: an event that arrives in order does not wake it."""
        self._behind = self._closed = False
        if cursors is not None and cursors.lost:
            with self._changed:
                self._tell_missed("*", wanted.types)
        self._threads = [threading.Thread(target=self._recover_all, name="waystage-recovery", daemon=True)]
        sink = callback or (queue and self._into(queue))
        if sink:
            self._threads.append(
                threading.Thread(target=self._run, args=(sink,), name="waystage-subscriber", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    # -- for the caller -------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Envelope | None:
        """The next event, or None after `timeout` seconds or when closed. Commits the one before."""
        batch = self.take(1, timeout)
        return batch[0] if batch else None

    def take(self, most: int, timeout: float | None = None) -> list[Envelope]:
        """Up to `most` events, waiting for the first; `[]` after `timeout` or when closed. Commits those before."""
        self.commit()
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._closed, timeout)
            pop = self._entries.popleft
            batch = [pop() for _ in range(min(most, len(self._entries)))]
            if self._cursors is not None:
                self._taken = [
                    (item.envelope.source, item.type, item.envelope.seq)
                    for item in batch
                    if item.envelope.seq
                ]
            self.stats.delivered += len(batch)
            if batch:
                self._changed.notify_all()
            if self._behind and self._behind_with_room():
                self._to_repair.notify_all()
        return [item.envelope for item in batch]

    def commit(self) -> None:
        """What was taken has been dealt with; a durable subscriber does not get it again."""
        taken, self._taken = self._taken, []
        if taken and self._cursors is not None:
            self._cursors.save(taken)

    def drain(self, timeout: float) -> bool:
        """Whether, within `timeout` seconds, all that has arrived was taken; the last of it may still be dealt with."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not self._entries, timeout)

    def __iter__(self) -> Iterator[Envelope]:
        while (item := self.get()) is not None:
            yield item

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Stop; waits for a running callback, unless called from it."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._to_repair.notify_all()
        self._link.closed(self)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5.0)
        busy = [t for t in self._threads[1:] if t.is_alive() and t is not threading.current_thread()]
        if not busy:  # else a callback still deals with what was taken
            self.commit()
        if self._cursors is not None:
            self._cursors.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the backplane ----------------------------------------------------------------------

    def offer(self, *items: Arrival) -> None:
        """Events arrived, in this order; never blocks."""
        with self._changed:
            if self._closed:
                return
            self.stats.received += len(items)
            entries, capacity, judge = self._entries, self._capacity, self._inbox.offer
            for item in items:
                envelope = item.envelope
                room = len(entries) < capacity
                if envelope.event.telemetry or envelope.seq == 0:
                    self._offer_telemetry(item, room)
                    continue
                verdict = judge(item, room)
                if verdict is _DELIVER:
                    if self._whole or self.wanted.matches(envelope.event):
                        entries.append(item)
                else:
                    self._put_off(item, verdict)
            if entries:
                self._changed.notify_all()

    def recover(self, source: str) -> None:
        """Ask `source` for the events that this subscriber lacks."""
        with self._changed:
            self._gone.pop(source, None)
            self._recover_later(source)

    def gone(self, source: str) -> None:
        """`source` is gone, or only the way to it: its place is remembered until many others are gone too."""
        with self._changed:
            self._gone[source] = None
            while len(self._gone) > GONE_KEPT:
                oldest = next(iter(self._gone))
                del self._gone[oldest]
                self._inbox.forget(oldest)

    # -- inside -----------------------------------------------------------------------------------

    def _put_off(self, item: Arrival, verdict: Verdict) -> None:
        """What is not delivered now."""
        if verdict is Verdict.DUPLICATE:
            self.stats.duplicates += 1
        elif verdict is Verdict.GAP:
            self.stats.gaps += 1
            self._recover_later(item.envelope.source)
            # Its events wait, and who published them may: ahead of those that may have missed nothing.
            self._to_recover.move_to_end(item.envelope.source, last=False)
        elif verdict is Verdict.DEFERRED:
            if self.stats.deferred == 0:
                log.warning(
                    "a subscriber's queue of %d is full: events of %s will be fetched again",
                    self._capacity,
                    item.envelope.source,
                )
            self.stats.deferred += 1
            self._behind = True
            self._to_repair.notify_all()

    def _offer_telemetry(self, item: Arrival, room: bool) -> None:
        if room:
            self._append(item)
            return
        if self.stats.dropped == 0:
            log.warning("a subscriber's queue of %d is full: telemetry is dropped", self._capacity)
        self.stats.dropped += 1

    def _append(self, item: Arrival) -> None:
        """Its caller notifies those that take events."""
        if self._whole or self.wanted.matches(item.envelope.event):
            self._entries.append(item)

    def _recover_later(self, source: str) -> None:
        self._to_recover[source] = None
        self._to_repair.notify_all()

    def _recover_all(self) -> None:
        """The mender's thread: one source after the other is asked for what is missing of it."""
        while True:
            with self._to_repair:
                self._to_repair.wait_for(
                    lambda: self._closed or self._to_recover or self._behind_with_room(),
                    ASK_AGAIN_S if self._unanswered else None,
                )
                if self._closed:
                    return
                for source in (*self._behind_with_room(), *self._unanswered):
                    self._to_recover.setdefault(source)
                self._behind = bool(self._inbox.behind())
                if not self._to_recover:
                    continue
                source = next(iter(self._to_recover))
                del self._to_recover[source]
                missing = self._inbox.hold(source) or source in self._unanswered
                request = ReplayRequest(last=self._inbox.last(source), since_ns=self._since_ns)
            try:
                self._recover(source, request, missing)
            except Exception:
                log.exception("fetching events of %s again failed", source)

    def _behind_with_room(self) -> list[str]:
        return self._inbox.behind() if len(self._entries) <= self._capacity // 2 else []

    def _recover(self, source: str, request: ReplayRequest, missing: bool) -> None:
        journal = self._cursors is None or self._cursors.asks_journal
        answer = self._link.replay(source, self.wanted.types, request, journal)
        replayed, end, whole = answer or Replayed([], ReplayEnd(), whole=False)
        give_up = False
        with self._changed:
            if answer is None:
                missing = missing or self._inbox.incomplete(source)
            else:
                missing = not whole and self._inbox.has_hole(source, replayed, end.missed)
        if missing:
            # It may be the way that is cut, and not the publisher that is gone.
            since = self._unanswered.setdefault(source, time.monotonic())
            give_up = time.monotonic() - since > GIVE_UP_S
            if not give_up:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, ASK_AGAIN_S / 10)
                return
        self._unanswered.pop(source, None)
        with self._changed:
            self.stats.replayed += len(replayed)
            if give_up:
                self._tell_missed(source, self.wanted.types)
        gone = end.missed
        while True:
            with self._changed:
                found = self._inbox.next(source, replayed, gone, give_up=give_up)
                if found.lost and not give_up:
                    self._tell_missed(source, tuple(found.lost))
                if found.again:
                    self.stats.gaps += 1
                    self._recover_later(source)
            replayed, gone = [], {}
            for item in found.events:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._entries) < self._capacity)
                    if self._closed:
                        return
                    self._append(item)
                    self._changed.notify_all()
            if found.again or not found.events:
                return

    def _tell_missed(self, source: str, types: tuple[str, ...]) -> None:
        self.stats.missed += 1
        log.warning("events of %s are lost to this subscriber: %s", source, ", ".join(types))
        event = Missed(publisher=source, types=types)
        note = Envelope(event=event, event_id=new_event_id(), time_ns=time.time_ns())
        self._entries.append(Arrival(note, "Missed", None))
        self._changed.notify_all()

    def _run(self, sink: Callback) -> None:
        while not self._closed:
            for envelope in self.take(1):
                try:
                    sink(envelope)
                except Exception:
                    self.stats.callback_errors += 1
                    log.exception("a subscriber failed on %s", type(envelope.event).__name__)

    def _into(self, queue: queues.Queue[Envelope]) -> Callback:
        def put(envelope: Envelope) -> None:
            while not self._closed:
                try:
                    queue.put(envelope, timeout=0.5)
                    return
                except queues.Full:
                    continue

        return put
