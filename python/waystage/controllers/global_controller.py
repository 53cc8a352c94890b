"""The controller of a system, which takes decisions on events.

Arrives: every event on the backplane, through the intake.
Leaves: `Decided` events, actions to actuators, snapshots of the state on request.
Must not know: OpenFlow, the workings of actuators and policies.

Two threads: the intake journals; the engine folds, calls the policy, records its decision and acts. A slow actuator
delays decisions, never the journal. After a crash, the engine replays the journal with the recorded decisions, and
handles events without a recorded decision as new. Actions are complete plans, so repeating one is idempotent.
Telemetry that need not be journalled is, after all, where the policy took a decision on it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from waystage.backplane import Backplane, Snapshot, keys, wire
from waystage.backplane.config import BackplaneError
from waystage.controllers.actuator import Actuator, Observer
from waystage.controllers.engine import PolicyEngine
from waystage.controllers.intake import Intake
from waystage.controllers.journal import Entry, Journal, JournalError, Restored, Sync
from waystage.events import (
    Action,
    AssignPaths,
    CollectivePlaced,
    Decided,
    Envelope,
    Event,
    EventError,
    FlowAdjusted,
    IoAdjusted,
    IoStarted,
    JobStarted,
    PathPlan,
    PolicyFailed,
    StagingStarted,
    TopologyChanged,
    encode_action,
)
from waystage.policies.base import Policy
from waystage.state import State
from waystage.topology import Topology

log = logging.getLogger(__name__)

ENGINE_QUEUE = 4096
"""Journalled events that wait for the engine; when it is full the intake waits, and publishers hold the rest."""

ERROR_LENGTH, FAILURES_TOLD = 200, 20
"""Published length and number of a failing policy's messages; the log has all."""

ERRORS_BETWEEN_LINES = 1000
"""Failures of the journal for each report: writing is tried after every event."""

TICK_S = 1.0
"""Between two calls of `Observer.tick`."""

Item = Entry | Callable[[], None]


class ControllerStats(msgspec.Struct, kw_only=True):
    """Counts since the start."""

    handled: int = 0
    decisions: int = 0
    actions: int = 0
    unclaimed_actions: int = 0
    policy_errors: int = 0
    actuator_errors: int = 0
    observer_errors: int = 0
    journal_errors: int = 0


class GlobalController:
    """`start` and `stop` in pairs; also a context manager. `state` belongs to the engine's thread: use `snapshot`.

    Construct it before its actuators are started: `requested` is then the plan they must keep in force.
    """

    def __init__(
        self,
        policy: Policy,
        actuators: Sequence[Actuator],
        backplane: Backplane,
        state_dir: Path,
        *,
        sync: Sync = "full",
    ) -> None:
        self.stats = ControllerStats()
        self.actuators: list[Actuator] = list(actuators)
        self.observers: list[Observer] = []
        self.backplane = backplane
        self._journal = Journal(state_dir / "journal.db", sync=sync)
        self._queue: queue.Queue[Item | None] = queue.Queue(ENGINE_QUEUE)
        self._intake = Intake(backplane, self._journal, self._accepted)
        self._thread = threading.Thread(target=self._run, name="waystage-engine", daemon=True)
        self._told: set[tuple[str, str]] = set()
        self._done = 0
        self._next_tick = 0.0
        self._decisions: dict[int, tuple[Action, ...]] = {}
        self._place: dict[str, dict[str, int]] = {}
        restored = self._journal.restore()
        self._engine = PolicyEngine(policy, self._restored_state(restored))
        self._pending = self._fold(restored)

    # -- life ---------------------------------------------------------------------------------

    @property
    def requested(self) -> PathPlan | None:
        """The plan last asked for, restored or decided."""
        return self._engine.state.requested

    def start(self) -> None:
        """Act on what was left undone, re-apply the plan in force, then take in events."""
        if self.requested is not None:
            cause = Envelope(event=Decided(policy="", cause_id="", actions=()), event_id="restored")
            self._act([AssignPaths(plan=self.requested)], cause)
        for entry in self._pending:
            self._handle(entry)
        self._pending = []
        self._record()
        self._thread.start()
        self._intake.start()
        self.backplane.answer(keys.SNAPSHOT, self._answer_snapshot)

    def stop(self) -> None:
        """Take in and handle what has arrived, keep a snapshot, then stop."""
        self._intake.stop()
        self._queue.put(None)
        self._thread.join(timeout=30.0)
        if not self._thread.is_alive():
            self._record()
            self._compact()
        self._journal.close()

    def __enter__(self) -> GlobalController:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def publish(self, event: Event) -> None:
        """For actuators: what they have to tell. Logged, not raised, where it cannot be sent."""
        try:
            self.backplane.publish(event)
        except (BackplaneError, EventError) as error:
            log.error("cannot publish %s: %s", type(event).__name__, error)

    @property
    def restored(self) -> State:
        """The state as of the last stop. Only before `start`."""
        return self._engine.state

    def publish_topology(self, topology: Topology) -> None:
        """Tell everyone the topology in force, where no interconnect controller does."""
        self.publish(TopologyChanged(topology=topology))

    def snapshot(self, timeout: float = 5.0) -> State:
        """A copy of the state between two events. Raises TimeoutError where the engine is busy longer."""
        data = self._between_events(timeout)
        return State.restore(bytes(data.state))

    def known_events(self) -> list[Envelope]:
        """What is known of jobs, as events: those that the state implies, then all that the journal still has."""
        try:
            state = self.snapshot() if self._thread.is_alive() else self._engine.state
        except TimeoutError as error:
            log.error("jobs are made anew from the journal alone: %s", error)
            state = State()
        return [*_implied(state), *self._journal.events()]

    # -- the engine -------------------------------------------------------------------------------

    def _accepted(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._queue.put(entry)

    def _run(self) -> None:
        item: Item | None
        while True:
            try:
                item = self._queue.get(timeout=max(0.01, self._next_tick - time.monotonic()))
            except queue.Empty:
                self._tick()
                continue
            while item is not None:
                if isinstance(item, Entry):
                    self._handle(item)
                else:
                    self._record()
                    item()
                self._tick()
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            self._record()
            if item is None:
                return
            if self._journal.wants_snapshot:
                self._compact()

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self._observe(lambda observer: observer.tick(self._engine.state))

    def _observe(self, call: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            try:
                call(observer)
            except Exception:
                self.stats.observer_errors += 1
                log.exception("%s failed", type(observer).__name__)

    def _handle(self, entry: Entry) -> None:
        if isinstance(entry.envelope.event, FlowAdjusted | IoAdjusted | CollectivePlaced):
            return  # its own
        actions = self._engine.handle(entry.envelope)
        self.stats.handled += 1
        self.stats.policy_errors = self._engine.policy_errors
        self._note(entry)
        if self._engine.failure is not None:
            self._tell_failure(entry.envelope, self._engine.failure)
        if actions:
            n = entry.n or self._journal_late(entry.envelope)
            if n:
                self._decisions[n] = tuple(actions)
            self.stats.decisions += 1
            self._act(actions, entry.envelope)
        # What an application waits for goes first: observers send settings, and the record of the decision follows.
        self._observe(lambda observer: observer.seen(entry.envelope, self._engine.state))
        if actions or self._engine.reason:
            self.publish(
                Decided(
                    policy=self._engine.policy.name,
                    cause_id=entry.envelope.event_id,
                    actions=tuple(encode_action(action) for action in actions),
                    reason=self._engine.reason,
                )
            )

    def _journal_late(self, item: Envelope) -> int:
        """The place of an event that is journalled because a decision was taken on it; 0 where it cannot be."""
        try:
            entries = self._journal.append([(item, None)])
        except JournalError as error:
            self._not_written(error)
            return 0
        return entries[0].n if entries else 0

    def _tell_failure(self, cause: Envelope, error: Exception) -> None:
        """Once for each type of event and error: a policy may fail on every event."""
        name = keys.type_name(cause.event)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:ERROR_LENGTH]
        if (name, text) in self._told or len(self._told) >= FAILURES_TOLD:
            return
        self._told.add((name, text))
        self.publish(
            PolicyFailed(policy=self._engine.failed_name, cause_id=cause.event_id, event=name, error=text)
        )

    def _act(self, actions: Sequence[Action], cause: Envelope) -> None:
        for action in actions:
            takers = [a for a in self.actuators if a.accepts(action)]
            if not takers:
                self.stats.unclaimed_actions += 1
            for actuator in takers:
                try:
                    actuator.apply(action, cause)
                    self.stats.actions += 1
                except Exception:
                    self.stats.actuator_errors += 1
                    log.exception("%s failed on %s", type(actuator).__name__, type(action).__name__)

    def _record(self) -> None:
        """Written after the actions: a crash in between repeats them, which is harmless, and loses none.

        A journal that refuses is tried again with what comes next; decisions do not wait for it.
        """
        try:
            self._journal.record(self._done, self._decisions)
            self._decisions = {}
        except JournalError as error:
            self._not_written(error)

    def _compact(self) -> None:
        try:
            self._journal.compact(self._done, self._engine.state.snapshot())
        except JournalError as error:
            self._not_written(error)

    def _not_written(self, error: JournalError) -> None:
        if self.stats.journal_errors == 0 or self.stats.journal_errors % ERRORS_BETWEEN_LINES == 0:
            log.error("%s; tried again with the next events", error)
        self.stats.journal_errors += 1

    def _note(self, entry: Entry) -> None:
        item = entry.envelope
        self._done = entry.n or self._done
        if item.seq:
            self._place.setdefault(item.source, {})[keys.type_name(item.event)] = item.seq

    # -- restoring and showing -----------------------------------------------------------------

    def _restored_state(self, restored: Restored) -> State:
        if restored.state is None:
            return State()
        try:
            return State.restore(restored.state)
        except EventError as error:
            log.error(
                "the snapshot in %s cannot be read (%s): only the events after it count",
                self._journal.path,
                error,
            )
            return State()

    def _fold(self, restored: Restored) -> list[Entry]:
        """Repeat what was done; returns what was accepted and not done."""
        self._done = restored.processed
        self._place = self._journal.cursors()
        pending = []
        for entry in restored.entries:
            if entry.n <= restored.processed:
                self._engine.fold(entry.envelope, restored.decisions.get(entry.n, ()))
            else:
                pending.append(entry)
        return pending

    def _between_events(self, timeout: float) -> Snapshot:
        box: queue.Queue[Snapshot] = queue.Queue(1)
        try:
            self._queue.put(lambda: box.put(self._take_snapshot()), timeout=timeout)
            return box.get(timeout=timeout)
        except (queue.Full, queue.Empty):
            raise TimeoutError(f"the engine was busy for {timeout:g} s") from None

    def _take_snapshot(self) -> Snapshot:
        state = self._engine.state
        return Snapshot(
            state=msgspec.Raw(state.snapshot()),
            events=state.events,
            cursors={source: dict(last) for source, last in self._place.items()},
        )

    def _answer_snapshot(self, key: str, payload: bytes, attachment: bytes, reply: wire.Reply) -> None:
        reply(msgspec.json.encode(self._between_events(timeout=5.0)))


def _implied(state: State) -> list[Envelope]:
    """Events after which the jobs of `state` are as it says."""
    found: list[tuple[Event, int]] = []
    for job in state.jobs.values():
        if job.running:
            found.append((JobStarted(job_id=job.job_id, nodes=job.nodes, user=job.user), job.started_ns))
        for direction, amount in job.staging.items():
            event = StagingStarted(
                job_id=job.job_id,
                direction=direction,
                bytes=amount,
                nodes=job.nodes,
                user=job.staging_user.get(direction, ""),
            )
            found.append((event, job.staging_ns.get(direction, job.started_ns)))
        if job.io:
            found.append((IoStarted(job_id=job.job_id), job.started_ns))
    return [Envelope(event=event, event_id="", time_ns=time_ns) for event, time_ns in found]
