"""The stager: takes requests from local processes, starts engines, and sees every request to its end.

Arrives: lines of clients with their users; reports of engines; a queue on disk.
Leaves: answers; engines with their users' rights; staging events.
Must not know: how bytes are moved, who the controllers are.

One thread owns queue and engines. What is answered or begun has been committed before: a kill at any moment loses
nothing that a client has an answer for, and leaves no engine that is not noted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import selectors
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from waystage.backplane import BackplaneConfig, statefile
from waystage.local_rpc import Bounds, LocalServer
from waystage.staging import clock
from waystage.staging.answers import Answers
from waystage.staging.errors import StagingError
from waystage.staging.inbox import Inbox
from waystage.staging.ledger import Ledger
from waystage.staging.moves import Move
from waystage.staging.processes import Engine, Spawner, boot_id, end_orphan, start_of
from waystage.staging.publisher import Publisher
from waystage.staging.queue import Queue
from waystage.staging.requests import Request
from waystage.staging.retries import Ended
from waystage.staging.schedule import Limits, decide
from waystage.staging.users import account_of

log = logging.getLogger(__name__)

LAST_READS = 64
"""Reads, of 64 KiB, of what an engine has said before its end."""

LINES_AT_ONCE = 64
"""Lines that are handled in one transaction."""

KEEP_S = 5.0
"""Between two writes of an engine's progress."""

GRACE_S = 10.0
"""How long a cancelled engine may take to end."""

FENCE_S = 0.2
PRUNE_S = 60.0
LONGEST_SLEEP_S = 5.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a stager is started with. `controllers` is None where no events are published."""

    state_dir: Path
    socket: Path
    limits: Limits = Limits()
    submitters: frozenset[int] = frozenset()
    controllers: BackplaneConfig | None = None
    rsh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")
    remote_waystage: str = "waystage"
    catalogs: tuple[str, ...] = ()


class Stager:
    """`run` serves until `stop` is called, from a signal handler or another thread."""

    def __init__(self, settings: Settings) -> None:
        """Takes the state directory. Raises StagingError where another stager has it."""
        self.settings = settings
        try:
            statefile.private_folder(settings.state_dir)
            loose = statefile.changeable(settings.state_dir, {0}) if os.geteuid() == 0 else None
            if loose:  # root acts for every user whose number is in the queue
                raise StagingError(f"{settings.state_dir} holds requests that are carried out: {loose}")
            settings.state_dir.chmod(statefile.FOLDER_MODE)
            self._lock = os.open(settings.state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StagingError(
                f"{settings.state_dir}: {error.strerror}: give a --state-dir to write to"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StagingError(
                f"{settings.state_dir}: another stager uses it: stop it or give another --state-dir"
            ) from None
        self.queue = Queue(settings.state_dir / "staging.sqlite")
        self.ledger = Ledger(self.queue, settings.limits)
        self._selector = selectors.DefaultSelector()
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self.inbox = Inbox(self.wake, settings.submitters)
        self.server = LocalServer(
            settings.socket,
            self.inbox,
            mode=0o666 if os.geteuid() == 0 else 0o600,
            bounds=Bounds(trusted=settings.submitters),
        )
        self.engines: dict[int, Engine] = {}
        self.spawner = Spawner()
        self._fenced = {each.id for each in self.queue.open.values() if each.state == "running"}
        self._kept_at: dict[int, float] = {}
        self._last_start: dict[tuple[int, str], int] = {}
        self._publishing = 0
        self._confirmed = 0
        self._publisher: Publisher | None = None
        if settings.controllers is not None:
            self._publisher = Publisher(settings.controllers, self._confirm)
        self.answers = Answers(self)
        self._boot = boot_id()
        self._stopping = False
        self._prune_at = 0.0

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def submitters(self) -> frozenset[int]:
        return self.settings.submitters

    def stop(self) -> None:
        """End `run`, from any thread or a signal handler."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waking, b"x")

    def changed(self) -> None:
        """Something that a decision depends on has changed."""
        self.ledger.dirty = True

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Raises LocalRpcError where the socket cannot be served."""
        try:
            self.server.start()
            if self._publisher is not None:
                self._publisher.start()
            ready()
            while not self._stopping:
                try:
                    self._turn()
                except StagingError as error:
                    # A full disk: nothing was answered or begun that is not on it.
                    log.error("%s", error)
                    time.sleep(1.0)
        finally:
            self._end()

    # -- one turn ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._sleep_s()):
            if key.data is None:
                with contextlib.suppress(OSError):
                    os.read(self._woken, 1 << 16)
            elif key.data[0] is self.spawner:
                self._hear_spawner()
            else:
                self._hear(*key.data)
        self.answers.handle(self.inbox.take(LINES_AT_ONCE), self.inbox.gone())
        self._fence()
        self._reap()
        self._keep_progress()
        self._start()
        self._publish()
        self.answers.wake_waiters()
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_S
            limits = self.settings.limits
            with self.queue.transaction():
                self.queue.prune(clock.now_ns() - int(limits.retain_s * 1e9), limits.finished_per_user)

    def _sleep_s(self) -> float:
        if self.inbox.waiting() or self.ledger.dirty:
            return 0.0
        if self._fenced or any(each.kill_at is not None for each in self.engines.values()):
            return FENCE_S
        waits = [LONGEST_SLEEP_S, self.answers.next_s()]
        if self.engines:
            waits.append(1.0)
        if self._wake_ns:
            waits.append(clock.seconds_until(self._wake_ns))
        return max(0.0, min(waits))

    _wake_ns = 0

    def _fence(self) -> None:
        """End engines of a stager that was killed; their requests go on once they are gone."""
        for number in list(self._fenced):
            request = self.queue.open.get(number)
            if request is None:
                self._fenced.discard(number)
            elif end_orphan(request.engine_pid, request.engine_start, request.engine_boot):
                with self.queue.transaction():
                    self.ledger.wait_again(request, "the stager was restarted")
                self._fenced.discard(number)
            else:
                request.reason = f"waits until engine {request.engine_pid} of an earlier stager has ended"

    # -- engines ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self.ledger.dirty:
            if self._wake_ns and clock.now_ns() >= self._wake_ns:
                self.ledger.dirty = True
            else:
                return
        self.ledger.dirty = False
        now = clock.now_ns()
        decision = decide(list(self.queue.open.values()), self.settings.limits, now, self._last_start)
        self._wake_ns = decision.wake_ns if decision.wake_ns < 2**63 else 0
        for number, reason in decision.reasons.items():
            self.queue.open[number].reason = reason
        for number in decision.start:
            self._begin(self.queue.open[number], now)

    def _begin(self, request: Request, now: int) -> None:
        asked = request.submission
        account = account_of(request.uid, request.gid)
        self._last_start[request.uid, ""] = self._last_start[request.uid, asked.job_id] = now
        try:
            if self.spawner.ensure():
                self._selector.register(self.spawner, selectors.EVENT_READ, (self.spawner, ""))
            engine = self.spawner.start(request.id, account)
        except StagingError as error:
            self.ledger.settle(request, Ended("failed", str(error)))
            return
        move = Move(
            submission=asked,
            first=request.attempts == 0,
            catalogs=self.settings.catalogs,
            rsh=self.settings.rsh,
            remote_waystage=self.settings.remote_waystage,
        )
        try:
            with self.queue.transaction():
                self.ledger.begin(request, engine.pid, start_of(engine.pid), self._boot, now)
        except StagingError:
            # It has not been told anything.
            engine.kill()
            engine.close()
            raise
        self.engines[request.id] = engine
        self._selector.register(engine.stdout, selectors.EVENT_READ, (engine, "stdout"))
        self._selector.register(engine.stderr, selectors.EVENT_READ, (engine, "stderr"))
        engine.tell(msgspec.to_builtins(move))
        log.info("request %d: engine %d of user %s begins", request.id, engine.pid, account.name)

    def _hear_spawner(self) -> None:
        # Looked up before: once closed, it has no descriptor.
        number = self.spawner.fileno()
        if not self.spawner.hear():
            self._selector.unregister(number)
            log.error("the process that starts engines has ended: it is started anew")

    def _hear(self, engine: Engine, stream: str) -> None:
        if stream == "stderr":
            if not engine.drain_errors():
                self._selector.unregister(engine.stderr)
            return
        if not self._listen(engine):
            self._selector.unregister(engine.stdout)

    def _listen(self, engine: Engine) -> bool:
        """Note what has arrived; whether more may follow."""
        reports, more = engine.reports()
        request = self.queue.open.get(engine.request_id)
        for report in reports:
            if request is not None:
                self.ledger.hear(request, report)
        return more

    def _cancel_engine(self, number: int) -> None:
        engine = self.engines.get(number)
        if engine is not None and engine.kill_at is None:
            engine.cancel()
            engine.kill_at = time.monotonic() + GRACE_S

    def cancel(self, request: Request) -> None:
        """Cancel a request that is not final; within a transaction."""
        request.cancelling = True
        if request.id in self.engines:
            request.reason = "is being cancelled"
            self.queue.write(request)
            self._cancel_engine(request.id)
        elif request.id in self._fenced:
            request.reason = "is being cancelled"
            self.queue.write(request)
        else:
            self.ledger.finish(request, "cancelled", "cancelled")

    def _reap(self) -> None:
        while self.ledger.over_quota:
            self._cancel_engine(self.ledger.over_quota.pop())
        for number, engine in list(self.engines.items()):
            engine.flush()
            status = engine.status
            if status is None:
                if engine.kill_at is not None and time.monotonic() >= engine.kill_at:
                    engine.kill()
                continue
            for _ in range(LAST_READS):
                if not self._listen(engine):
                    break
            engine.drain_errors()
            for stream in (engine.stdout, engine.stderr):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(stream)
            engine.close()
            del self.engines[number]
            request = self.queue.open.get(number)
            ended = self.ledger.ends.pop(number, None)
            counts = self.ledger.counts.pop(number, {})
            self._kept_at.pop(number, None)
            if request is None:
                continue
            if ended is None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                words = engine.last_words()
                ended = Ended("died", f"the engine ended with {how}" + (f": {words}" if words else ""))
            moved = counts.get("bytes", 0) + counts.get("files", 0) > 0
            self.ledger.settle(request, msgspec.structs.replace(ended, moved=moved), counts)

    def _keep_progress(self) -> None:
        """Write the progress of engines now and then."""
        now = time.monotonic()
        due = [number for number in self.engines if now - self._kept_at.get(number, 0.0) >= KEEP_S]
        if due:
            with self.queue.transaction():
                for number in due:
                    self._kept_at[number] = now
                    if number in self.queue.open:
                        self.queue.write(self.queue.open[number])

    # -- events -----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self._publisher is None:
            return
        if self._confirmed:
            self.queue.published(self._confirmed)
            self._confirmed = self._publishing = 0
        if not self._publishing:
            batch = self.queue.unpublished()
            if batch:
                self._publishing = batch[-1][0]
                self._publisher.publish(batch)

    def _confirm(self, last: int) -> None:
        self._confirmed = last
        self.wake()

    # -- the end ----------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop serving, end engines; their requests go on with the next stager."""
        self.server.stop()
        for engine in self.engines.values():
            engine.cancel()
        until = time.monotonic() + GRACE_S
        while any(each.status is None for each in self.engines.values()) and time.monotonic() < until:
            if select.select([self.spawner], [], [], 0.1)[0] and not self.spawner.hear():
                break
        self.spawner.close()
        for engine in self.engines.values():
            engine.close()
        with contextlib.suppress(StagingError), self.queue.transaction():
            for request in self.queue.open.values():
                if request.state == "running" and request.id not in self._fenced:
                    self.ledger.wait_again(request, "the stager was stopped")
        if self._publisher is not None:
            self._publisher.stop()
            self._publish()
        self.queue.__exit__()
        os.close(self._lock)
