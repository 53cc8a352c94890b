"""Intake of a controller: from the backplane, through the journal, to the engine.

Arrives: every event on the backplane, and queries whether an event is journalled.
Leaves: accepted events, in the order of the journal, each exactly once; acknowledgements.
Must not know: policies, states, actuators.

One thread takes all queued events, writes them in one transaction and forwards them; telemetry that need not be
journalled goes along, with 0 for its place. Another flushes the writes and
only then confirms the events as journalled. No decision waits for the disk or for an earlier flush, and a confirmation
is never premature.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from waystage.backplane import Backplane, Missed, keys, wire
from waystage.backplane.inbox import Arrival
from waystage.backplane.outbox import ReplayEnd
from waystage.controllers.journal import Entry, Journal, JournalError
from waystage.events import Envelope

log = logging.getLogger(__name__)

BATCH = 256
"""Events written in one transaction: bounds the delay of the first by the time of the others, about 5 ms."""

ACK_EVERY, ACK_WITHIN_S = 64, 0.5
"""Events and seconds between acknowledgements to a publisher, whose cache holds over 100 times as many events."""

FLUSH_EVERY = 1024
"""Events between flushes; a flush also happens after ACK_WITHIN_S and for each pending confirmation."""

RETRY_S = 1.0
"""A disk that refuses is tried again after this long; meanwhile publishers hold what is not written."""

PLACES_KEPT = 200_000
"""Publishers remembered in memory, the latest; the journal itself knows as many."""

Accepted = Callable[[list[Entry]], None]
Confirm = Callable[[Envelope, float], bool]

CONFIRM_ABOVE_S = 2.0
"""How long a confirmation from a higher tier is waited for before the publisher has to ask again."""


class Intake:
    """Serves `confirm` and `journal` queries on `backplane`; `accepted` may block to slow the intake.

    `confirm`: whether a higher tier has journalled an event too, where there is one.
    """

    def __init__(
        self, backplane: Backplane, journal: Journal, accepted: Accepted, confirm: Confirm | None = None
    ) -> None:
        self._confirm_above = confirm
        self._pool = ThreadPoolExecutor(4, "waystage-confirm") if confirm else None
        self.journal_errors = 0
        self.missed = 0
        self._backplane, self._journal, self._accepted = backplane, journal, accepted
        self._waiting: list[tuple[Arrival, wire.Reply]] = []
        self._waiting_lock = threading.Lock()
        self._acked: dict[str, tuple[int, float]] = {}
        self._to_ack: dict[str, int] = {}
        self._stopping = threading.Event()
        self._written: list[tuple[str, str, int]] = []
        self._written_changed = threading.Condition()
        self._all_written = False
        self._threads = [
            threading.Thread(target=self._run, name="waystage-intake", daemon=True),
            threading.Thread(target=self._run_flush, name="waystage-flush", daemon=True),
        ]
        places = {(s, name): seq for s, last in journal.cursors().items() for name, seq in last.items()}
        self._accepted_to: dict[tuple[str, str], int] = dict(places)
        self._durable_to: dict[tuple[str, str], int] = places

    def start(self) -> None:
        """Subscribe to everything, then let publishers ask."""
        self._subscription = self._backplane.subscribe(None, durable=_Place(self._journal))
        for thread in self._threads:
            thread.start()
        self._backplane.answer(f"{keys.CONFIRM}/*/*", self._confirm)
        self._backplane.answer(f"{keys.JOURNAL}/*/*", self._replay)

    def stop(self) -> None:
        """Take in what has arrived already, then stop."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=30.0)
        self._subscription.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def queued(self) -> int:
        return len(self._subscription)

    # -- writing --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._subscription.take(BATCH, timeout=0.05 if self._stopping.is_set() else ACK_WITHIN_S)
            if batch:
                self._accept(batch)
            elif self._stopping.is_set():
                break
        with self._written_changed:
            self._all_written = True
            self._written_changed.notify_all()

    def _accept(self, batch: list[Envelope]) -> None:
        for item in batch:
            if isinstance(item.event, Missed):
                self.missed += 1
                log.error(
                    "events of %s are lost (%s): its cache was too small for the time without a controller, or it ended "
                    "before it could be asked",
                    item.event.publisher,
                    ", ".join(item.event.types),
                )
        wanted = [item for item in batch if not isinstance(item.event, Missed)]
        entries = self._write(wanted)
        if entries is None:
            return
        places = [(item.source, keys.type_name(item.event), item.seq) for item in wanted if item.seq]
        _remember(self._accepted_to, places)
        # Before it is confirmed: who then asks for the state gets one that knows of it.
        if entries:
            self._accepted(entries)
        with self._written_changed:
            self._written += places
            self._written_changed.notify_all()

    def _write(self, batch: list[Envelope]) -> list[Entry] | None:
        """Tries until the disk takes it: to go on without would be to lose it."""
        previous: dict[tuple[str, str], int] = {}
        pairs: list[tuple[Envelope, int | None]] = []
        for item in batch:
            key = (item.source, keys.type_name(item.event))
            pairs.append((item, previous.get(key, self._accepted_to.get(key, 0))))
            previous[key] = item.seq
        journalled = [pair for pair in pairs if pair[0].event.journalled]
        while True:
            try:
                entries = self._journal.append(journalled) if journalled else []
                passing = [Entry(n=0, envelope=item) for item in batch if not item.event.journalled]
                return _as_arrived(entries, passing, batch) if passing else entries
            except JournalError as error:
                self.journal_errors += 1
                log.error("%s; trying again, nothing is lost while publishers hold it", error)
                if self._stopping.wait(RETRY_S):
                    return None

    # -- flushing -----------------------------------------------------------------------------------

    def _run_flush(self) -> None:
        while True:
            with self._written_changed:
                self._written_changed.wait_for(self._flush_is_due, ACK_WITHIN_S)
                written, self._written = self._written, []
                last = self._all_written
            if written and not self._flush():
                return
            _remember(self._durable_to, written)
            for source, _, seq in written:
                self._to_ack[source] = max(seq, self._to_ack.get(source, 0))
            self._confirm_waiting()
            self._acknowledge(everything=last)
            if last:
                return

    def _flush_is_due(self) -> bool:
        """Not after every event: writing waits while the disk flushes, and so would decisions."""
        asked = bool(self._waiting) and bool(self._written)
        return self._all_written or asked or len(self._written) >= FLUSH_EVERY

    def _flush(self) -> bool:
        while True:
            try:
                self._journal.flush()
                return True
            except JournalError as error:
                self.journal_errors += 1
                log.error("%s; nothing is confirmed until it works", error)
                if self._stopping.wait(RETRY_S):
                    return False

    def _acknowledge(self, everything: bool) -> None:
        now = time.monotonic()
        for source, seq in list(self._to_ack.items()):
            last, at = self._acked.get(source, (0, 0.0))
            if everything or seq - last >= ACK_EVERY or now - at >= ACK_WITHIN_S:
                del self._to_ack[source]
                self._acked.pop(source, None)
                self._acked[source] = (seq, now)
                self._backplane.acknowledge(source, seq)
        while len(self._acked) > PLACES_KEPT:
            del self._acked[next(iter(self._acked))]

    # -- queries, in Zenoh's threads ----------------------------------------------------------------

    def _confirm(self, key: str, payload: bytes, attachment: bytes, reply: wire.Reply) -> None:
        source, name = key.split("/")[-2:]
        item = self._backplane.decode_arrival(source, name, payload, attachment)
        if item is None:
            return
        with self._waiting_lock:
            self._waiting.append((item, reply))
        self._subscription.offer(item)
        self._confirm_waiting()
        with self._written_changed:
            self._written_changed.notify_all()

    def _confirm_waiting(self) -> None:
        with self._waiting_lock:
            still = []
            for item, reply in self._waiting:
                if self._durable_to.get((item.envelope.source, item.type), 0) >= item.envelope.seq:
                    self._say_journalled(item.envelope, reply)
                else:
                    still.append((item, reply))
            self._waiting = still[-10_000:]  # who waited longer has asked again

    def _say_journalled(self, item: Envelope, reply: wire.Reply) -> None:
        confirm = self._confirm_above
        if confirm is None or self._pool is None:
            reply(b"journalled")
            return

        def ask() -> None:
            if confirm(item, CONFIRM_ABOVE_S):
                reply(b"journalled")

        self._pool.submit(ask)

    def _replay(self, key: str, payload: bytes, attachment: bytes, reply: wire.Reply) -> None:
        if self._stopping.is_set():
            return  # the requester retries, with the next controller
        request = wire.decode_request(payload)
        source, asked = key.split("/")[-2:]

        def wanted(name: str, seq: int, time_ns: int) -> bool:
            known = request.last.get(name)
            return seq > known if known is not None else time_ns >= request.since_ns

        try:
            items, missed = self._journal.replay(source, asked, wanted)
        except JournalError as error:
            self.journal_errors += 1
            log.error("%s; it is asked again", error)
            return
        wire.send_replay(reply, key, items, ReplayEnd(missed=missed))


def _as_arrived(entries: list[Entry], passing: list[Entry], batch: list[Envelope]) -> list[Entry]:
    """Both in the order of `batch`, whose envelopes they hold."""
    place = {id(item): index for index, item in enumerate(batch)}
    return sorted([*entries, *passing], key=lambda entry: place[id(entry.envelope)])


def _remember(places: dict[tuple[str, str], int], done: list[tuple[str, str, int]]) -> None:
    for source, name, seq in done:
        places.pop((source, name), None)
        places[source, name] = seq
    while len(places) > PLACES_KEPT:
        del places[next(iter(places))]


class _Place:
    """The journal as the cursor store of the subscription: `append` moves the cursors with the events."""

    def __init__(self, journal: Journal) -> None:
        self.since_ns = 0  # a controller wants all that publishers still hold
        self.asks_journal = False  # it is the journal
        self.lost = False  # it says so itself
        self._journal = journal

    def load(self) -> dict[str, dict[str, int]]:
        return self._journal.cursors()

    def save(self, done: list[tuple[str, str, int]]) -> None:
        return None

    def close(self) -> None:
        return None
