"""A process's session on the backplane.

Arrives: a configuration, events to publish, subscriptions.
Leaves: envelopes on the network, arrivals to subscriptions, answers to replays.
Must not know: states, policies, the meaning of events. Only this, `wire.py` and `receiving.py` import zenoh.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue as queues
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import zenoh

from waystage.backplane import connections, keys, wire
from waystage.backplane.access import may_speak_for
from waystage.backplane.config import BackplaneConfig, BackplaneError
from waystage.backplane.cursors import CursorStore, FileCursors
from waystage.backplane.inbox import Arrival
from waystage.backplane.outbox import Outbox, ReplayEnd, ReplayRequest
from waystage.backplane.properties import Properties, Wanted
from waystage.backplane.receiving import COALESCE_S, BatchReceiver
from waystage.backplane.subscription import Callback, Missed, Replayed, Subscription
from waystage.events import (
    Envelope,
    Event,
    EventError,
    check_names,
    encode,
    new_event_id,
)

log = logging.getLogger(__name__)

REPLAY_TIMEOUT_S = 5.0
"""A publisher answers a replay from memory; one that needs longer is gone."""

CONFIRM_RETRY_S = 1.0
"""A controller that restarts comes back in about this time, so ask again after it."""

MAILBOXES = 64
"""Subscriptions kept open for `wait` and `test`; the one longest unused is closed for another."""


class NotConfirmed(BackplaneError):
    """The event was published, but no controller said in time that it has journalled it."""


class BackplaneStats(msgspec.Struct, kw_only=True):
    """Counts since the backplane was opened; `overrun` are events evicted before a controller had them."""

    published: int = 0
    malformed: int = 0
    replays_answered: int = 0
    blocked_ns: int = 0
    overrun: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A controller's state, and how far it had come: the number of its last event of each source and type."""

    state: msgspec.Raw
    events: int = 0
    cursors: dict[str, dict[str, int]] = {}


class Backplane:
    """Open with `Backplane.open`; thread-safe; close it, or use it in a `with` statement."""

    def __init__(self, session: zenoh.Session, config: BackplaneConfig) -> None:
        self.config = config
        self.source = f"{config.publisher_name}.{os.urandom(6).hex()}"
        self.stats = BackplaneStats()
        self._session = session
        self._outbox = Outbox(config.cache_events, config.cache_bytes)
        self._outbox_changed = threading.Condition()
        self._publishing = threading.Lock()
        self._declared: list[Any] = []
        self._announced = False
        self._subscriptions: dict[Subscription, list[Any]] = {}
        self._alive: set[str] = set()
        self._watching = False
        self._watchers: list[Callable[[str, bool], None]] = []
        self._lock = threading.RLock()
        self._mailboxes: dict[str, Subscription] = {}
        self._blamed: set[str] = set()
        self._closed = False
        if config.access:
            self._declared.append(connections.report(session, config.access))

    @classmethod
    def open(cls, config: BackplaneConfig | None = None, *, streams: bool = False) -> Backplane:
        """`streams`: the process mostly receives, from one router.

        Raises BackplaneError: an endpoint in use or out of reach, certificates that do not fit, an unsafe setting."""
        config = config or BackplaneConfig()
        config.check()
        config = msgspec.structs.replace(config, name=config.publisher_name)
        try:
            keys.check_part("publisher name", config.name)
            keys.check_part("scope", config.scope)
        except EventError as error:
            raise BackplaneError(str(error)) from None
        return cls(wire.open_session(config, streams=streams), config)

    # -- CLARISSE's interface ---------------------------------------------------------------------

    def publish(self, event: Event, *, confirm: bool = False, timeout: float = 5.0) -> Envelope:
        """Send `event` to its subscribers; with `confirm`, return only once the controller has journalled it.

        It travels under the scope of the configuration, or under its own address where it has one.

        Raises EventError for an event that may not travel, NotConfirmed after `timeout` seconds, BackplaneError
        where the backplane is closed.
        """
        return self.forward(event, new_event_id(), time.time_ns(), confirm=confirm, timeout=timeout)

    def forward(
        self, event: Event, event_id: str, time_ns: int, *, confirm: bool = False, timeout: float = 5.0
    ) -> Envelope:
        """`publish`, keeping the id and time that an event got where it was first published."""
        check_names(event)
        _refuse_missed(event)
        if self._closed:
            raise BackplaneError("the backplane is closed: open another")
        if event.telemetry:
            item = Envelope(event=event, event_id=event_id, source=self.source, time_ns=time_ns)
            self._put(event, encode(item), None)
            return item
        with self._publishing:
            self._announce()
            draft = Envelope(event=event, event_id=event_id, source=self.source, time_ns=time_ns)
            with self._outbox_changed:
                self._wait_for_room(len(encode(draft)))
                item = msgspec.structs.replace(draft, seq=self._outbox.last_seq + 1)
                data = encode(item)
                held = self._outbox.add(keys.type_name(event), time_ns, data)
            self._put(event, data, held.previous)
        if confirm:
            self._confirm(held.type, data, held.previous, timeout)
        return item

    def confirm_published(self, timeout: float = 5.0) -> bool:
        """Whether, within `timeout` seconds, the controller has journalled everything published so far."""
        with self._outbox_changed:
            newest = self._outbox.newest()
        if newest is None:
            return True
        try:
            self._confirm(newest.type, newest.data, newest.previous, timeout)
        except NotConfirmed:
            return False
        return True

    def subscribe(
        self,
        properties: Properties = None,
        callback: Callback | None = None,
        queue: queues.Queue[Envelope] | None = None,
        *,
        durable: str | CursorStore | None = None,
        state_dir: Path | None = None,
        capacity: int | None = None,
        scope: str = "*",
        coalesce_s: float = COALESCE_S,
    ) -> Subscription:
        """Events with these properties, to `callback` (in a separate thread), to `queue`, or to iterate over.

        With a `scope`, only those that are published under it reach this process. Where every event is wanted, those of
        a stream are passed on together every `coalesce_s` seconds: fewer times cost less.

        `durable` names a subscriber whose place is kept in `state_dir`: after a crash it gets what it has
        missed since, at least once, or `Missed`.
        """
        wanted = Wanted(properties)
        cursors: CursorStore | None
        if isinstance(durable, str):
            if state_dir is None:
                raise BackplaneError(
                    f"durable subscriber {durable!r}: give state_dir, where its place is kept"
                )
            cursors = FileCursors(state_dir, durable)
        else:
            cursors = durable
        subscription = Subscription(
            self,
            wanted,
            capacity=capacity or self.config.queue,
            callback=callback,
            queue=queue,
            cursors=cursors,
        )

        with self._lock:
            self._watch()
            self._subscriptions[subscription] = []  # from now on told of every publisher that appears
            present = list(self._alive)
            self._subscriptions[subscription] = self._receivers(subscription, scope, coalesce_s)
        if cursors is not None:
            known = cursors.load() if cursors.asks_journal else {}
            for source in dict.fromkeys((*present, *known)):  # the living first: they may be waiting
                subscription.recover(source)
        return subscription

    def widen(self, subscription: Subscription, scope: str) -> None:
        """Let a subscription of one scope have what is published under another too."""
        with self._lock:
            self._subscriptions[subscription] += self._receivers(subscription, scope)

    def wait(
        self, event_type: str | type[Event], timeout: float | None = None, **fields: Any
    ) -> Envelope | None:
        """The oldest such event not yet taken by `wait` or `test`, waiting for one; None after `timeout` seconds."""
        return self.watch(event_type, **fields).get(timeout)

    def test(self, event_type: str | type[Event], **fields: Any) -> Envelope | None:
        """The oldest such event since `watch`, `wait` or `test` was first called for it and not yet taken, or None."""
        return self.watch(event_type, **fields).get(0)

    def watch(self, event_type: str | type[Event], **fields: Any) -> Subscription:
        """Begin to collect such events for `wait` and `test`."""
        name = event_type if isinstance(event_type, str) else event_type.__name__
        key = repr((name, sorted(fields.items(), key=lambda pair: pair[0])))
        with self._lock:
            box = self._mailboxes.pop(key, None)
            if box is None:  # an empty one is false
                box = self.subscribe({"type": name, **fields})
            self._mailboxes[key] = box
            oldest = next(iter(self._mailboxes)) if len(self._mailboxes) > MAILBOXES else None
            surplus = self._mailboxes.pop(oldest) if oldest is not None else None
        if surplus is not None:
            surplus.close()
        return box

    def watch_publishers(self, callback: Callable[[str, bool], None]) -> None:
        """Call with the name of every publisher of control events that is there, and when one comes or goes.

        One call after the other, in the order in which it came about; the callback must not wait for anything.
        """
        with self._lock:
            self._watch()
            self._watchers.append(callback)
            for source in self._alive:
                callback(source, True)

    def publishers(self, timeout: float = 2.0) -> set[str]:
        """Those that answer now. A client whose router was killed is not told that they are gone."""
        found = wire.living(self._session, f"{keys.ALIVE}/*", timeout=timeout)
        return {keys.last_part(key) for key in found}

    @property
    def connected(self) -> bool:
        """Whether another process is connected."""
        info = self._session.info
        return bool(info.routers_zid() or info.peers_zid())

    def snapshot(self, timeout: float = 5.0) -> Snapshot:
        """The state of the global controller. Raises BackplaneError where none answers."""
        for _, payload in wire.ask(self._session, keys.SNAPSHOT, b"", timeout):
            return msgspec.json.decode(payload, type=Snapshot)
        raise BackplaneError(f"no controller answered within {timeout:g} s: is one running and connected?")

    def close(self) -> None:
        """Leave the backplane. Waits for running callbacks."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()
        self._undeclare(self._declared)  # waits for running callbacks, unlike closing the session
        with contextlib.suppress(zenoh.ZError):
            self._session.close()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Backplane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for controllers, which hold what others publish ----------------------------------------

    def answer(self, key: str, handler: wire.Handler) -> None:
        """Answer queries to `key`, which may hold `*`; the handler may reply later, from any thread."""
        self._declared.append(wire.answer(self._session, key, handler))

    def acknowledge(self, source: str, seq: int) -> None:
        """Tell `source` that everything up to `seq` is journalled."""
        wire.put(self._session, f"{keys.ACK}/{source}", str(seq).encode(), None)

    def decode_arrival(
        self, source: str, type_name: str | None, data: bytes, attachment: bytes, scope: str | None = None
    ) -> Arrival | None:
        """Bytes from elsewhere as an arrival; None, counted and logged once a source, where they are malformed.

        The source, and the type and scope where they are given, are those of the key, which access rights go by: a
        message that claims to be of another source or type, or belongs to another scope, is refused.
        """
        try:
            item = wire.arrival(source, type_name, data, attachment)
            owner = item.envelope.event.belongs_to()
            if owner is not None and owner != scope:
                self._check_owner(item, owner, source, scope)
            if item.type == _MISSED:
                _refuse_missed(item.envelope.event)
            return item
        except EventError as error:
            self.stats.malformed += 1
            if source not in self._blamed and len(self._blamed) < 1024:
                self._blamed.add(source)
                log.warning("dropped a malformed message of %s: %s", ascii(source)[:80], error)
            return None

    # -- for subscriptions (Link) -----------------------------------------------------------------

    def replay(
        self, source: str, types: tuple[str, ...], request: ReplayRequest, journal: bool = True
    ) -> Replayed | None:
        """Ask `source` itself; where it is gone, ask the controller's journal if `journal`."""
        answers = [self._replay_from(f"{keys.REPLAY}/{source}/{name}", source, request) for name in types]
        whole = None not in answers
        if not whole and journal:
            answers = [
                self._replay_from(f"{keys.JOURNAL}/{source}/{name}", source, request) for name in types
            ]
        found = [answer for answer in answers if answer is not None]
        if not found:
            return None
        missed: dict[str, int] = {}
        for _, end in found:
            missed |= end.missed
        return Replayed([item for items, _ in found for item in items], ReplayEnd(missed=missed), whole)

    def closed(self, subscription: Subscription) -> None:
        with self._lock:
            declared = self._subscriptions.pop(subscription, [])
            self._mailboxes = {k: s for k, s in self._mailboxes.items() if s is not subscription}
        self._undeclare(declared)

    # -- inside -----------------------------------------------------------------------------------

    def _check_owner(self, item: Arrival, owner: str, source: str, scope: str | None) -> None:
        """Replays and confirmations travel without a scope: there the access rules of this router are asked."""
        keys.check_scope(item.envelope.event, scope)
        if scope is None and not may_speak_for(self.config.access, source, item.type, owner):
            raise EventError(
                f"{item.type} belongs to {ascii(owner)[:60]}, for which no access rule lets it speak"
            )

    @staticmethod
    def _undeclare(declared: list[Any]) -> None:
        for item in declared:
            with contextlib.suppress(zenoh.ZError):
                item.undeclare()

    def _put(self, event: Event, data: bytes, previous: int | None) -> None:
        scope = keys.check_part("scope", event.belongs_to() or self.config.scope)
        key = keys.event_key(event, scope, self.source)
        wire.put(self._session, key, data, previous, telemetry=event.telemetry)
        self.stats.published += 1

    def _announce(self) -> None:
        """Before the first control event: others may now ask for what this process holds."""
        if self._announced:
            return
        self._announced = True
        self.answer(f"{keys.REPLAY}/{self.source}/*", self._answer_replay)
        ack_key = f"{keys.ACK}/{self.source}"
        handler = wire.callback(self._acknowledged)
        self._declared.append(self._session.declare_subscriber(ack_key, handler))
        self._declared.append(self._session.liveliness().declare_token(f"{keys.ALIVE}/{self.source}"))

    def _wait_for_room(self, size: int) -> None:
        """Back-pressure: a controller that has acknowledged before is given time to catch up."""
        if not self._outbox.would_evict_unacknowledged(size):
            return
        started = time.monotonic_ns()
        if self._outbox.acknowledged:
            self._outbox_changed.wait_for(
                lambda: self._closed or not self._outbox.would_evict_unacknowledged(size),
                self.config.publish_wait_s,
            )
        self.stats.blocked_ns += time.monotonic_ns() - started
        if self._outbox.would_evict_unacknowledged(size):
            if self.stats.overrun == 0 and self._outbox.acknowledged:
                log.warning("%d events wait for a controller, and the oldest are dropped", len(self._outbox))
            self.stats.overrun += 1

    def _acknowledged(self, sample: zenoh.Sample) -> None:
        with contextlib.suppress(ValueError), self._outbox_changed:
            self._outbox.acknowledge(int(bytes(sample.payload)))
            self._outbox_changed.notify_all()

    def _confirm(self, type_name: str, data: bytes, previous: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        key = f"{keys.CONFIRM}/{self.source}/{type_name}"
        while (remaining := deadline - time.monotonic()) > 0:
            attempt = min(remaining, CONFIRM_RETRY_S)
            for _ in wire.ask(self._session, key, data, attempt, str(previous).encode()):
                return
            if self._closed:
                break
            time.sleep(min(0.05, max(0.0, deadline - time.monotonic())))  # no peer yet: no busy loop
        who = "this certificate" if self.config.tls is not None else "clients of its unix socket"
        raise NotConfirmed(
            f"no controller confirmed the event within {timeout:g} s: is `waystage controller` running and "
            f"reachable at the endpoints to connect to, and do its access rules, where it has any, let {who} "
            f"publish {type_name} as {self.config.name}?"
        )

    def _answer_replay(self, key: str, payload: bytes, attachment: bytes, reply: wire.Reply) -> None:
        request = wire.decode_request(payload)
        with self._outbox_changed:
            items, end = self._outbox.replay(request, keys.last_part(key))
        self.stats.replays_answered += 1
        found = ((item.type, item.previous, item.data) for item in items)
        wire.send_replay(reply, f"{keys.REPLAY}/{self.source}/{keys.last_part(key)}", found, end)

    def _replay_from(
        self, key: str, source: str, request: ReplayRequest
    ) -> tuple[list[Arrival], ReplayEnd] | None:
        payload = msgspec.json.encode(request)
        end: ReplayEnd | None = None
        arrivals: list[Arrival] = []
        for answered, data in wire.ask(self._session, key, payload, REPLAY_TIMEOUT_S):
            items, last = wire.decode_chunk(data)
            end = last or end
            for _, previous, body in items:
                name = keys.last_part(answered)
                item = self.decode_arrival(source, name, body, str(previous).encode())
                if item is not None:
                    arrivals.append(item)
        return None if end is None else (arrivals, end)

    def _watch(self) -> None:
        """Learn which publishers hold events, and when one appears or comes back. Called with the lock."""
        if self._watching:
            return
        self._watching = True
        handler = wire.callback(self._seen)
        liveliness = self._session.liveliness()
        self._declared.append(liveliness.declare_subscriber(f"{keys.ALIVE}/*", handler))
        found = wire.living(self._session, f"{keys.ALIVE}/*", timeout=2.0)
        self._alive.update(keys.last_part(key) for key in found)

    def _seen(self, sample: zenoh.Sample) -> None:
        source = keys.last_part(str(sample.key_expr))
        appeared = sample.kind == zenoh.SampleKind.PUT
        with self._lock:  # after the answer to `living`, which may have been made before
            (self._alive.add if appeared else self._alive.discard)(source)
            for watcher in self._watchers:
                watcher(source, appeared)
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            if not appeared:
                subscription.gone(source)
            elif source != self.source:
                subscription.recover(source)

    def _receivers(self, subscription: Subscription, scope: str, coalesce_s: float = COALESCE_S) -> list[Any]:
        """What is declared for a subscription in a scope."""

        def arrived(samples: Iterable[zenoh.Sample]) -> None:
            items = []
            for sample in samples:
                source, name, scope = keys.event_key_parts(str(sample.key_expr))
                before = sample.attachment
                attachment = b"" if before is None else before.to_bytes()
                item = self.decode_arrival(source, name, sample.payload.to_bytes(), attachment, scope)
                if item is not None:
                    items.append(item)
            subscription.offer(*items)

        types = subscription.wanted.types
        if types == ("*",) and scope == "*":
            return [BatchReceiver(self._session, keys.type_key("*", scope), arrived, coalesce_s)]
        # In Zenoh's own thread: one for each type or scope would mix up the order of a source's events.
        handler: Any = zenoh.handlers.Callback(lambda sample: arrived((sample,)), indirect=False)
        return [self._session.declare_subscriber(keys.type_key(name, scope), handler) for name in types]


_MISSED = Missed.__name__


def _refuse_missed(event: Event) -> None:
    if isinstance(event, Missed):
        raise EventError("Missed is what a subscription tells its own subscriber; it does not travel")
