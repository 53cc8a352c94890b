"""Tasks on the workers of a Dask scheduler: each runs until it has a result, whatever becomes of single workers.

Arrives: tasks, and further tasks that results give rise to.
Leaves: every result, once, as it comes; on an error or Ctrl-C no task goes on.
Must not know: what tasks do, where the scheduler comes from.
"""

from __future__ import annotations

import pickle
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from waystage.nodes import remote
from waystage.nodes.errors import NodesError, NodesRefused, TaskKilled
from waystage.nodes.shared import Mark
from waystage.task import Progress

POLL_S = 0.2

WORKERS_S = 2.0
"""Between two counts of workers."""

NO_WORKERS_S = 60.0
"""How long work waits for workers to come back before it ends."""

AHEAD = 2
"""Tasks handed out for each thread of a worker: one that runs, and one so that no worker waits for the next."""

ATTEMPTS = 3
"""Of a task that fails for a reason that may pass. One whose worker is killed is run again by the scheduler."""

END_S = 20.0
"""How long a cancelled command waits for its tasks to end."""


@dataclass(frozen=True)
class Task:
    """`function(here, *arguments)`, a function that the workers can import. `name` is for messages; `weight` is its share
    of the work, in any unit."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    weight: float = 1.0
    first: bool = False
    """Whether it runs before others that follow from results."""


Finished = Callable[[Task, Any], Iterable[Task] | None]
"""Called with each result; returns the tasks that follow from it."""

Held = Callable[[bool], Task | None]
"""Asked for a task where no other waits. Its argument says whether a worker would otherwise have nothing to do; without that
it may answer None, to make a larger task of what comes next."""


@dataclass
class _Live:
    task: Task
    future: Any
    attempts: int = 1
    share: float = 0.0
    alone: bool = False
    """Whether it runs with no other, to see whether it is the one that kills workers."""


@dataclass
class _Run:
    """One call of `Engine.run`."""

    job: remote.Job
    progress: Progress
    finished: Finished
    live: dict[str, _Live] = field(default_factory=dict)
    ended: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    suspects: deque[Task] = field(default_factory=deque)
    done: int = 0
    done_weight: float = 0.0
    known_weight: float = 0.0


class Engine:
    """A scheduler and its workers, as `waystage.nodes.join` gives them."""

    def __init__(self, client: Any, address: str, *, patience_s: float = NO_WORKERS_S) -> None:
        self._client, self.address, self._patience_s = client, address, patience_s
        self._threads = 0
        self._looked = self._with_workers = time.monotonic()

    def threads(self) -> int:
        """Tasks that all workers together can run at once. Raises NodesError where the scheduler is gone."""
        try:
            return sum(self._client.nthreads().values())
        except (OSError, TimeoutError) as error:
            raise self._gone() from error

    def prepare(self, modules: Sequence[str]) -> None:
        """Let the workers that are there import `modules`, while this process goes on. Raises NodesError where the
        scheduler is gone."""
        try:
            self._client.run(remote.prepare, tuple(modules), on_error="ignore")
        except (OSError, TimeoutError) as error:
            raise self._gone() from error

    def run(
        self,
        tasks: Iterable[Task],
        finished: Finished,
        progress: Progress,
        *,
        held: Held | None = None,
        marks: Sequence[Mark] = (),
        total: float = 0.0,
    ) -> None:
        """Run all tasks, those that `finished` returns, and those that `held` gives. `total` is the weight of all, 0 where it
        is unknown.

        Raises what a task raised, on any worker; NodesRefused where a node lacks one of `marks` or is of another
        version; TaskKilled where the workers of a task are killed again and again; NodesError where the scheduler is
        gone. Tasks that then still run are cancelled, and have ended when this returns, as far as their workers answer.
        """
        run = _Run(remote.Job(secrets.token_hex(8), tuple(marks)), progress, finished, known_weight=total)
        self._threads = self._await_workers(progress)
        self._inspect(run.job)
        waiting = iter(tasks)
        more: deque[Task] = deque()
        topic = self._follow_progress(run)
        try:
            while True:
                self._hand_out(run, more, waiting, held)
                if not run.live:
                    break
                try:
                    key = run.ended.get(timeout=POLL_S)
                except queue.Empty:
                    self._look()
                    self._tell(run)
                    continue
                for task in self._take(run, key):
                    (more.appendleft if task.first else more.append)(task)
                self._tell(run)
        except BaseException:
            self._cancel(run)
            raise
        finally:
            with suppress(Exception):
                self._client.unsubscribe_topic(topic)

    def _hand_out(self, run: _Run, more: deque[Task], waiting: Iterable[Task], held: Held | None) -> None:
        most = max(2, AHEAD * self._threads)
        source = iter(waiting)
        while len(run.live) < most:
            task = more.popleft() if more else next(source, None)
            if task is None and held is not None:
                task = held(len(run.live) < self._threads)
            if task is None:
                break
            self._submit(run, task, _Live(task, None))
        if not run.live and run.suspects:
            task = run.suspects.popleft()
            self._submit(run, task, _Live(task, None, alone=True))

    def _submit(self, run: _Run, task: Task, live: _Live) -> None:
        # A separate key for each attempt: the scheduler must not give the result of a former one.
        key = f"waystage-{run.job.number}-{secrets.token_hex(6)}"
        arguments = (run.job, key, task.function, task.arguments)
        live.future = self._client.submit(remote.call, *arguments, key=key, pure=False)
        run.live[key] = live
        live.future.add_done_callback(lambda future, key=key: run.ended.put(key))

    def _take(self, run: _Run, key: str) -> Iterable[Task]:
        """What follows from a task that has ended."""
        live = run.live.pop(key)
        outcome = self._outcome(run, key, live)
        if outcome is None:
            return ()
        if outcome.refused:
            raise NodesRefused(outcome.refused)
        if outcome.error:
            if outcome.passing and live.attempts < ATTEMPTS:
                live.attempts += 1
                self._submit(run, live.task, live)
                return ()
            raise _raised(outcome, live)
        run.done += 1
        run.done_weight += live.task.weight
        return run.finished(live.task, outcome.value) or ()

    def _outcome(self, run: _Run, key: str, live: _Live) -> remote.Outcome | None:
        """None where the task runs again."""
        from distributed.scheduler import KilledWorker

        future = live.future
        try:
            outcome = future.result(timeout=5)
        except TimeoutError:
            # Its worker was lost with the result: the scheduler runs it again, and says when that has ended.
            run.live[key] = live
            if future.done():
                run.ended.put(key)
            else:
                future.add_done_callback(lambda future: run.ended.put(key))
            return None
        except KilledWorker as error:
            if live.alone:
                raise TaskKilled(
                    f"{live.task.name}: each of the {error.allowed_failures + 1} workers that ran it was killed, the last"
                    f" at {error.last_worker.address}: they may have run out of memory; see their logs"
                ) from None
            # Which of the tasks of those workers killed them shows when each runs alone.
            run.suspects.append(live.task)
            return None
        except Exception as error:
            if future.cancelled() or isinstance(error, OSError) or self._client.status != "running":
                raise self._gone() from error
            raise NodesError(
                f"{live.task.name} cannot be run on the workers ({type(error).__name__}: {error}): do they have the same"
                " Python and Dask?"
            ) from error
        assert isinstance(outcome, remote.Outcome)
        return outcome

    def _await_workers(self, progress: Progress) -> int:
        began = time.monotonic()
        while not (threads := self.threads()):
            if time.monotonic() - began > self._patience_s:
                raise self._no_worker()
            progress(f"waiting for a worker of {self.address}", 0.0)
            time.sleep(POLL_S)
        self._with_workers = time.monotonic()
        self._refuse_unreachable()
        return threads

    def _refuse_unreachable(self) -> None:
        """Raise NodesError where a worker of another host listens on its loopback interface: its results never come."""
        if _is_loopback(self._client.scheduler.address):
            return
        for worker in sorted(self._client.nthreads()):
            if _is_loopback(worker):
                raise NodesError(
                    f"a worker listens at {worker}, where no other host reaches it: its host has no default route; name its"
                    " network interface by 'dask worker --interface', or for --slurm by jobqueue.slurm.interface in"
                    " ~/.config/dask/jobqueue.yaml (docs/how-to/many-nodes.md)"
                )

    def _inspect(self, job: remote.Job) -> None:
        """Raise NodesRefused where a node that is there cannot take part. Later ones say it with their first task."""
        try:
            answers = self._client.run(remote.inspect, job, on_error="return")
        except (OSError, TimeoutError) as error:
            raise self._gone() from error
        for worker, answer in sorted(answers.items()):
            if isinstance(answer, ModuleNotFoundError):
                raise NodesRefused(
                    f"the worker at {worker} has no Waystage of this version ({answer}): start it with the Python of"
                    " this installation"
                )
            if isinstance(answer, str) and answer:
                raise NodesRefused(answer)
            # A worker that was lost meanwhile is no reason to refuse the others.

    def _look(self) -> None:
        """Learn of new workers; raise NodesError where there has been none for long, or the scheduler is gone."""
        now = time.monotonic()
        if now - self._looked < WORKERS_S:
            return
        self._looked = now
        if threads := self.threads():
            self._threads, self._with_workers = threads, now
        elif now - self._with_workers > self._patience_s:
            raise self._no_worker()

    def _follow_progress(self, run: _Run) -> str:
        def hear(event: tuple[float, Any]) -> None:
            message = event[1]
            live = run.live.get(message.get("key", ""))
            if live is not None:
                live.share = min(max(float(message.get("share", 0.0)), 0.0), 1.0)

        self._client.subscribe_topic(remote.TOPIC, hear)
        return remote.TOPIC

    def _tell(self, run: _Run) -> None:
        live = list(run.live.values())
        done = run.done_weight + sum(one.share * one.task.weight for one in live)
        whole = run.known_weight or run.done_weight + sum(one.task.weight for one in live)
        share = min(done / whole, 0.99) if whole else 0.0
        run.progress(f"{run.done:,} tasks done, {len(live)} in progress on {self._threads} workers", share)

    def _cancel(self, run: _Run) -> None:
        """End all tasks; wait until none runs any more, as long as the workers answer."""
        with suppress(Exception):
            self._client.cancel([live.future for live in run.live.values()], force=True)
        deadline = time.monotonic() + END_S
        with suppress(Exception):
            while time.monotonic() < deadline and self._client.status == "running":
                answers = self._client.run(remote.running, run.job.number, on_error="ignore")
                if not any(answers.values()):
                    return
                time.sleep(POLL_S)

    def _no_worker(self) -> NodesError:
        return NodesError(
            f"{self.address} has had no worker for {self._patience_s:.0f} s: start some, as in 'dask worker"
            f" {self.address}', and give the same command again"
        )

    def _gone(self) -> NodesError:
        return NodesError(
            f"the scheduler at {self.address} does not answer any more: finished work is kept; start it and its workers"
            " again, then give the same command again"
        )


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return host.startswith("127.") or host in ("localhost", "::1")


def _raised(outcome: remote.Outcome, live: _Live) -> Exception:
    """The task's own exception, which says on which node."""
    where = f"{live.task.name} failed on {outcome.node}"
    if live.attempts > 1:
        where += f", at the {live.attempts}rd attempt" if live.attempts == 3 else ", at the 2nd attempt"
    if outcome.raised:
        error = pickle.loads(outcome.raised)
        if isinstance(error, Exception):
            error.add_note(where)
            return error
    return NodesError(f"{where}: {outcome.error}")
