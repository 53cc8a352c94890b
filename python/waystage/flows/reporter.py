"""An engine's end: reports a running task to the flow agent of this node, and applies what it is asked to keep to.

Arrives: a task, what it moves; settings from the agent.
Leaves: a start, progress once a second, a finish; calls of the task's `set_rate`, `pause` and the like.
Must not know: the backplane, policies. It imports little: programs that run for a moment use it.

Everything happens in a separate thread, which sleeps until there is something to say. Without an agent there is no
thread. Nothing here delays the task or makes it fail: an agent that is gone or broken costs one line in the log, and
what it asked for is lifted after LIFT_AFTER_S.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from waystage.local_client import RUNTIME_FOLDER, LocalClient, LocalRpcError

log = logging.getLogger(__name__)

SOCKET = RUNTIME_FOLDER / "flows.sock"
ENVIRONMENT = "WAYSTAGE_FLOWS"
"""Another path of the socket; `none` switches reporting off."""

REPORT_S = 1.0
LIFT_AFTER_S = 30.0
"""A task that is paused or limited by an agent that is gone goes on after this time."""

RECONNECT_S, RECONNECT_MOST_S = 0.5, 10.0
TIMEOUT_S = 1.0
"""How long the agent may take to accept a line. Only the reporter's own thread waits for it."""

LEAVE_S, LEAVE_CONNECTED_S = 0.25, 5.0
"""How long the end of a task may wait for its finish to be sent: an agent that has accepted the connection takes the line
at once, but on a machine out of processor time the reporter's thread may have to wait for its turn."""

TARGETS_TOLD, NAME_CHARACTERS = 512, 48
"""Of one end of a flow, as a line of both ends has room for; other names are left out."""

TrafficClass = Literal["mpi", "staging", "io", "wan"]


class Moving(Protocol):
    """A task of the native module, as far as it is needed here."""

    def progress(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class FlowEnd:
    """One end of a flow: a host (empty: this one), storage targets as `FILE_SYSTEM:NUMBER`, or a wide-area peer.

    Without `targets`, those of `path` are looked up by a sample of its files, once an agent listens.
    """

    host: str = ""
    targets: tuple[str, ...] = ()
    peer: str = ""
    path: str | os.PathLike[str] = ""

    def message(self) -> dict[str, Any]:
        return {"host": self.host, "targets": list(self.targets or self._sampled()), "peer": self.peer}

    def _sampled(self) -> list[str]:
        if not self.path:
            return []
        from waystage._native import storage_targets

        return _told(storage_targets(Path(self.path)))


def storage(path: str | os.PathLike[str], names: Iterable[str] = ()) -> FlowEnd:
    """The end that is a tree on this host; `names` are its targets where a catalog knows them."""
    return FlowEnd(targets=tuple(_told(names)), path=os.path.abspath(path))


def _told(names: Iterable[str]) -> list[str]:
    fit = (name for name in names if name.isprintable() and 0 < len(name) <= NAME_CHARACTERS)
    return list(itertools.islice(fit, TARGETS_TOLD))


HERE = FlowEnd()


@dataclass(frozen=True)
class FlowDescription:
    """What a task moves. `user` only if root reports for another; `mode` and `loaders`, what the user chose.

    `job_id` None: `job_of(None)`. `counts` gives bytes done and in total (0: unknown) where the task has no `flow()`.
    """

    traffic: TrafficClass
    engine: str
    job_id: str | None = None
    user: str | None = None
    source: FlowEnd = HERE
    destination: FlowEnd = HERE
    bytes: int = 0
    mode: str | None = None
    loaders: int | None = None
    counts: Callable[[Mapping[str, int]], tuple[int, int]] | None = field(default=None, compare=False)


class Report:
    """A report in progress. `outcome` may be set to `failed` by an engine that ends without an exception."""

    def __init__(self) -> None:
        self.outcome: Literal["done", "failed", "cancelled"] = "done"
        self.flow_id = ""


def socket_path() -> Path | None:
    """The agent's socket; None where reporting is switched off."""
    given = os.environ.get(ENVIRONMENT, "")
    return None if given == "none" else Path(given) if given else SOCKET


def job_of(given: str | None) -> str | None:
    """The job that a flow belongs to: as given, else $WAYSTAGE_JOB, else $SLURM_JOB_ID."""
    for value in (given, os.environ.get("WAYSTAGE_JOB"), os.environ.get("SLURM_JOB_ID")):
        if value:
            return value
    return None


def copying_class(peer: str = "") -> TrafficClass:
    """The class of a copy: `wan` between hosts; on one host `staging` if it is for a job, else `io`."""
    return "wan" if peer else "staging" if job_of(None) is not None else "io"


@contextmanager
def reported(task: Moving, about: FlowDescription, agent: Path | None = None) -> Iterator[Report]:
    """Report `task` while the block runs; KeyboardInterrupt makes it a cancelled flow, an exception a failed one.

    `agent` is another socket than this host's.
    """
    report = Report()
    path = agent or socket_path()
    if path is None or not path.exists():
        yield report
        return
    reporter = _Reporter(task, about, path, report)
    reporter.start()
    try:
        yield report
    except BaseException as error:
        report.outcome = "failed" if isinstance(error, Exception) else "cancelled"
        raise
    finally:
        reporter.end()


class _Reporter:
    def __init__(self, task: Moving, about: FlowDescription, path: Path, report: Report) -> None:
        self._task, self._about, self._path, self._report = task, about, path, report
        self._controls: tuple[str, ...] = tuple(getattr(task, "controls", ()))
        self._version = 0
        self._limited_by = ""
        self._warned = self._connected = False
        self._ended = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="waystage-flow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(LEAVE_CONNECTED_S if self._connected else LEAVE_S)
        if not self._thread.is_alive():
            # Not by the thread, which may end before the write above: the number could be another file's by then.
            os.close(self._wake)

    def _run(self) -> None:
        try:
            self._reconnect()
        except Exception as error:
            self._warn(str(error))

    def _reconnect(self) -> None:
        wait_s, lost_at = RECONNECT_S, time.monotonic()
        while True:
            try:
                with LocalClient(self._path, timeout_s=TIMEOUT_S) as client:
                    if not self._serve(client):
                        return
                wait_s, lost_at = RECONNECT_S, time.monotonic()
            except (OSError, EOFError, ValueError) as error:
                if isinstance(error, EOFError) or not isinstance(error, LocalRpcError):
                    lost_at = time.monotonic()
                self._warn(str(error) or "it has disconnected")
            give_up_at = lost_at + LIFT_AFTER_S
            if self._ended.wait(wait_s):
                return
            wait_s = min(2 * wait_s, RECONNECT_MOST_S)
            if time.monotonic() > give_up_at:
                self._lift()

    def _serve(self, client: LocalClient) -> bool:
        self._connected = True
        try:
            return self._exchange(client)
        finally:
            self._connected = False

    def _exchange(self, client: LocalClient) -> bool:
        """Until the task ends (False) or the agent does not want this flow (False). Raises EOFError where it goes."""
        self._say(client, self._start_message())
        due = time.monotonic() + REPORT_S
        while True:
            wait_s = max(0.0, due - time.monotonic())
            ready, _, _ = select.select([client.fileno(), self._wake], [], [], wait_s)
            if client.fileno() in ready:
                while (line := client.receive(0)) is not None:
                    if not self._heard(json.loads(line), client):
                        return False
            if self._ended.is_set():
                done, total = self._counts()
                self._progress(client, done, total)
                self._say(client, {"type": "finish", "bytes_done": done, "outcome": self._report.outcome})
                return False
            if time.monotonic() >= due:
                due = time.monotonic() + REPORT_S
                self._progress(client, *self._counts())

    def _heard(self, message: Any, client: LocalClient) -> bool:
        if message["type"] == "refused":
            self._warn(message["why"])
            return False
        if message["type"] == "accepted":
            self._report.flow_id = message["flow_id"]
            if self._version:
                self._lift()  # the agent before this one asked for it
        elif message["type"] == "settings":
            self._apply(message)
            self._progress(client, *self._counts())
        return True

    def _start_message(self) -> dict[str, Any]:
        about = self._about
        message = {
            "type": "start",
            "traffic": about.traffic,
            "engine": about.engine,
            "job_id": job_of(about.job_id),
            "source": about.source.message(),
            "destination": about.destination.message(),
            "bytes": self._counts()[1] or about.bytes,
            "controls": list(self._controls),
        }
        return message | ({"user": about.user} if about.user is not None else {})

    def _progress(self, client: LocalClient, done: int, total: int) -> None:
        self._say(
            client,
            {
                "type": "progress",
                "bytes_done": done,
                "bytes": total,
                "limited_by": self._limited_by,
                "version": self._version,
            },
        )

    def _counts(self) -> tuple[int, int]:
        """Bytes done, and in total or 0."""
        flow = getattr(self._task, "flow", None)
        counts = flow() if flow is not None else None
        if counts is not None:
            self._limited_by = counts.limited_by
            if self._about.counts is None:
                return counts.bytes_done, counts.bytes_total
        found = self._task.progress()
        return self._about.counts(found) if self._about.counts is not None else (found.get("bytes", 0), 0)

    def _apply(self, wanted: Mapping[str, Any]) -> None:
        """Every setting that the task obeys; the version is that of the whole, whatever it obeys of it."""
        rate = wanted["rate_bps"]
        self._set("rate", "set_rate", None if rate is None else max(1, rate // 8))
        mode = wanted["mode"] or self._about.mode
        if mode is not None:
            self._set("mode", "set_mode", mode)
        loaders = wanted["loaders"] or self._about.loaders
        if loaders is not None:
            self._set("loaders", "set_loaders", loaders)
        self._set("pause", "pause" if wanted["paused"] else "resume")
        self._version = wanted["version"]

    def _lift(self) -> None:
        if self._version:
            self._apply({"version": 0, "rate_bps": None, "mode": None, "loaders": None, "paused": False})

    def _set(self, control: str, method: str, *value: Any) -> None:
        if control not in self._controls:
            return
        try:
            getattr(self._task, method)(*value)
        except Exception as error:  # of the task, which is not to fail for it
            self._warn(f"{self._about.engine} does not take a {control}: {error}")

    def _say(self, client: LocalClient, message: Mapping[str, Any]) -> None:
        client.send(json.dumps(message).encode())

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the flow agent does not know of this %s, which goes on: %s", self._about.engine, why)
