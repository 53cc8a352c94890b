"""Feeds a model from the backplane.

Arrives: events, publishers that come and go, a controller's snapshot of the state.
Leaves: a model that is up to date, and what was lost to it.
Must not know: HTTP, frames.

The state comes from a snapshot: at the start, when a controller comes back, and after events that were lost. Events
wait for it for a moment, and those that it includes are shown but not folded again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError, Missed, Snapshot, keys
from waystage.events import Envelope, EventError
from waystage.state import State
from waystage.view.feed import Feed

log = logging.getLogger(__name__)

CAPACITY = 1 << 17
"""Events that wait: ten seconds at 10,000 a second."""

BATCH = 1 << 14
"""Most events of one frame; the others wait for the next."""

COALESCE_S = 0.01
"""Between two batches of a stream of events: frames are ten times as far apart."""

SNAPSHOT_S = 5.0

HOLD_NS, RETRY_NS = 3_000_000_000, 10_000_000_000
"""How long events wait for a snapshot, and when one that did not come is asked for again."""

LONGEST_HOLD_NS = 4 * HOLD_NS
"""Where a snapshot came later than events after it, these wait twice as long for the next, but no longer than this."""

CHECK_NS = 500_000_000
"""Between two checks of the connection."""


class Live:
    """`fold` brings the feed up to date; close it in the end. Raises BackplaneError."""

    def __init__(self, config: BackplaneConfig, feed: Feed) -> None:
        self._feed = feed
        self._backplane = Backplane.open(config, streams=True)
        self._seen: deque[tuple[str, bool]] = deque()
        self._cursors: dict[str, dict[str, int]] = {}
        self._controllers: set[str] = set()
        self._present: set[str] = set()
        self._arrived: deque[tuple[Snapshot | None, set[str] | None]] = deque()
        self._asking = self._overtaken = False
        self._incomplete = True
        self._connected = True
        self._check_ns = self._hold_ns = 0
        self._hold_for_ns = HOLD_NS
        self._heard: set[str] = set()
        """Publishers that came or went since a snapshot was asked for: what is said of them with it is older."""
        try:
            self._events = self._backplane.subscribe(None, capacity=CAPACITY, coalesce_s=COALESCE_S)
            self._backplane.watch_publishers(lambda source, present: self._seen.append((source, present)))
        except BaseException:
            self._backplane.close()
            raise
        self._ask()

    def fold(self) -> int:
        """Fold what has arrived; the time in ns."""
        now = time.time_ns()
        self._fold_publishers(now)
        if self._arrived:
            self._adopt(*self._arrived.popleft(), now)
        if not (self._asking and now < self._hold_ns):
            batch = self._events.take(BATCH, 0)
            self._overtaken |= self._asking and bool(batch)
            if Missed in {type(item.event) for item in batch}:
                self._ask()
            known, new = self._split(batch) if self._cursors else ([], batch)
            self._feed.apply(known, known=True)
            self._feed.apply(new)
        stats = self._events.stats
        self._feed.change(lambda model: model.lost(stats.missed, stats.dropped))
        return now

    @property
    def settled(self) -> bool:
        """Whether the controller's state is there."""
        return not self._asking and not self._incomplete

    @property
    def stats(self) -> dict[str, int]:
        """Events received, lost and dropped since the start."""
        stats = self._events.stats
        return {
            "received": stats.received,
            "lost": stats.missed,
            "dropped": stats.dropped,
            "waiting": len(self._events),
        }

    def close(self) -> None:
        self._backplane.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _fold_publishers(self, now: int) -> None:
        while self._seen:
            source, present = self._seen.popleft()
            self._heard.add(source)
            self._publisher(source, present, now)
            if present and source.rpartition(".")[0] in self._controllers:
                self._ask()  # a controller is back
        if now < self._check_ns:
            return
        self._check_ns = now + CHECK_NS
        connected = self._backplane.connected
        if self._connected and not connected:
            self._heard |= self._present
            for source in list(self._present):  # of those behind the router, no message comes
                self._publisher(source, False, now)
        if connected and (not self._connected or (self._incomplete and now > self._hold_ns + RETRY_NS)):
            self._ask()
        self._connected = connected

    def _publisher(self, source: str, present: bool, now: int) -> None:
        if present != (source in self._present):
            (self._present.add if present else self._present.discard)(source)
            self._feed.change(lambda model: model.publisher(source, present, now))

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking, self._overtaken, self._heard = True, False, set()
        self._hold_ns = time.time_ns() + self._hold_for_ns
        threading.Thread(target=self._fetch, name="waystage-snapshot", daemon=True).start()

    def _fetch(self) -> None:
        snapshot: Snapshot | None = None
        present: set[str] | None = None
        try:
            present = self._backplane.publishers()
            snapshot = self._backplane.snapshot(SNAPSHOT_S)
        except BackplaneError as error:
            log.warning("no snapshot: %s", error)
        except Exception:
            log.exception("a snapshot could not be read")
        self._arrived.append((snapshot, present))

    def _adopt(self, found: Snapshot | None, present: set[str] | None, now: int) -> None:
        self._asking = False
        self._incomplete = found is None
        if present is not None:
            for source in (present | self._present) - self._heard:
                self._publisher(source, source in present, now)
        if found is None:
            return
        try:
            state = State.restore(bytes(found.state))
        except EventError as error:
            log.warning("the controller's snapshot is ignored: %s", error)
            return
        self._cursors = found.cursors
        self._feed.change(lambda model: model.adopt(state, found.cursors.items()))
        self._controllers |= self._feed.model.controllers
        if self._overtaken:  # events were folded that this snapshot may not have
            self._hold_for_ns = min(2 * self._hold_for_ns, LONGEST_HOLD_NS)
            self._ask()

    def _split(self, batch: list[Envelope]) -> tuple[list[Envelope], list[Envelope]]:
        """Events that the snapshot includes, and the others."""
        known: list[Envelope] = []
        new: list[Envelope] = []
        for item in batch:
            last = self._cursors.get(item.source)
            if last is not None and item.seq > 0:
                name = keys.type_name(item.event)
                if item.seq <= last.get(name, 0):
                    known.append(item)
                    continue
                last.pop(name, None)  # what follows of this type is later
                if not last:
                    del self._cursors[item.source]
            new.append(item)
        return known, new
