"""Reports the I/O process of a node to the flow agent, and applies what it is asked to keep to.

Arrives: a running aggregator process, what it says of itself; lines of the agent.
Leaves: START_IO and FINISH_IO of its applications, measured service of its aggregator; settings of the process.
Must not know: the backplane, policies, how bytes are moved.

One thread for the process, one connection for each application. Without an agent the process does its work alone.
Nothing here makes an operation fail: an agent that is gone costs one line in the log, and what it asked for is lifted
after LIFT_AFTER_S. Operations that are faster than the agent takes lines are reported together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from waystage.collective.settings import Settings, Steered
from waystage.collective.storage import storage_of
from waystage.flows.reporter import LIFT_AFTER_S, job_of, socket_path
from waystage.local_client import LocalClient

log = logging.getLogger(__name__)

REPORT_S = 1.0
POLL_S = 0.02
"""How often the process is asked what has happened, beside at once where an operation may wait for a grant."""

RECONNECT_S = 1.0
TIMEOUT_S = 1.0
PROMPT_S = 0.1
"""Service is reported this soon after an operation at this aggregator, so that a policy knows of it before the next."""

PROMPT_EVERY_S = 0.3
"""Not more often than this, beside the reports of each second: the agent takes 20 lines a second."""

BURST_S = 0.2
"""Operations without a grant that follow each other faster than this are reported together: the agent takes 20 lines a
second."""


class Aggregating(Steered, Protocol):
    """The native process."""

    def status(self) -> Mapping[str, Any]: ...

    def notices(self) -> Sequence[Mapping[str, Any]]: ...

    def fileno(self) -> int: ...


@contextlib.contextmanager
def reported(process: Aggregating, name: str) -> Iterator[None]:
    """Report `process`, whose aggregator is called `name`, while the block runs."""
    path = socket_path()
    if path is None:
        yield
        return
    reporter = _Reporter(process, name, path)
    reporter.start()
    try:
        yield
    finally:
        reporter.end()


class _Application:
    """What is reported of one application, and its connection to the agent."""

    def __init__(self, name: str, process: Steered) -> None:
        self.name = name
        self.settings = Settings(process, name)
        self.client: LocalClient | None = None
        self.lost_at = time.monotonic()
        self.next_try = 0.0
        self.op = 0
        self.done = 0
        self.untold: list[Mapping[str, Any]] = []
        """Notices of operations that have ended and are not reported yet."""
        self.told_at = 0.0
        self.served = (0, 0.0)
        """Bytes served when that was last reported, and the time."""
        self.open: dict[str, Any] | None = None
        self.epoch = 0


class _Reporter:
    def __init__(self, process: Aggregating, name: str, path: Path) -> None:
        self._process, self._name, self._path = process, name, path
        self._host = name.partition("/")[0]
        self._applications: dict[str, _Application] = {}
        self._status: Mapping[str, Any] = {}
        self._storage: dict[bytes, str] = {}
        self._looked_at = 0.0
        self._ended = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="waystage-io-reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        due = 0.0
        while not self._ended.is_set():
            try:
                now = time.monotonic()
                self._read(due - now)
                self._act()
                self._report_served()
                if time.monotonic() >= due:
                    due = time.monotonic() + REPORT_S
                    self._report_all()
            except Exception:
                log.exception("the I/O process goes on without its reporter's last step")
                self._ended.wait(REPORT_S)
        for app in list(self._applications.values()):
            self._finish(app)

    # -- from the agent ---------------------------------------------------------------------------------

    def _read(self, left_s: float) -> None:
        """Lines of the agent, until there is something to do or for the time of one poll."""
        wait_s = max(0.0, min(POLL_S, left_s))
        by_fd = {app.client.fileno(): app for app in self._applications.values() if app.client is not None}
        scheduled = any(app.settings.scheduled for app in self._applications.values())
        poller = select.poll()  # a node with many ranks has descriptors that `select` refuses
        for fd in [*by_fd, self._process.fileno()] if scheduled else by_fd:
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(1000 * wait_s)]
        for fd in by_fd.keys() & set(ready):
            app = by_fd[fd]
            try:
                while app.client is not None and (line := app.client.receive(0)) is not None:
                    self._heard(app, json.loads(line))
            except (OSError, EOFError, ValueError) as error:
                self._disconnected(app, error)
        now_ns = time.monotonic_ns()
        for app in self._applications.values():
            app.settings.tick(now_ns)

    def _heard(self, app: _Application, message: Mapping[str, Any]) -> None:
        if message["type"] == "io-settings":
            app.settings.apply(message, time.monotonic_ns())
            self._report(app)
        elif message["type"] == "refused":
            self._warn(message["why"])
            self._disconnected(app, None)

    # -- from the process -----------------------------------------------------------------------------------

    def _act(self) -> None:
        notices = self._process.notices()
        if notices:
            self._status = self._process.status()
        for notice in notices:
            self._notice(notice)
        now = time.monotonic()
        for app in list(self._applications.values()):
            if app.client is None and now >= app.next_try:
                self._connect(app)
            if app.client is None and app.settings.version and now - app.lost_at > LIFT_AFTER_S:
                app.settings.lift()
            if app.untold and now - app.told_at >= BURST_S:
                self._tell_completed(app)

    def _notice(self, notice: Mapping[str, Any]) -> None:
        kind = notice["event"]
        if kind == "aggregator_lost":
            lost = str(notice["address"]).partition("@")[0]
            message = {"type": "io-server", "aggregator": lost, "lost": True, "reason": "it does not answer"}
            for known in self._applications.values():
                self._say(known, message)
            return
        name = notice["app"]
        if name not in self._applications:
            self._applications[name] = _Application(name, self._process)
            self._connect(self._applications[name])
        app = self._applications[name]
        if kind == "requested":
            app.op += 1
            app.open = {
                "type": "io-request",
                "op": app.op,
                "bytes": notice["bytes"],
                "storage": self._storage_of(notice["path"]),
            }
            if app.untold:
                if not app.settings.scheduled and time.monotonic() - app.told_at < BURST_S:
                    return
                self._tell_completed(app)
            self._say(app, app.open)
        elif kind == "completed":
            app.done += 1
            app.untold.append(notice)
            if app.settings.scheduled or time.monotonic() - app.told_at >= BURST_S:
                self._tell_completed(app)
        elif kind == "map_adopted":
            names = [str(address).partition("@")[0] for address in notice["aggregators"]]
            self._say(app, {"type": "io-adopted", "epoch": notice["epoch"], "aggregators": names})
        elif kind == "app_finished":
            self._finish(app)
            self._applications.pop(app.name, None)

    def _tell_completed(self, app: _Application) -> None:
        ended, app.untold, app.told_at = app.untold, [], time.monotonic()
        self._report(app)
        self._say(
            app,
            {
                "type": "io-complete",
                "op": app.done,
                "bytes": sum(notice["bytes"] for notice in ended),
                "waited_ns": sum(notice["waited_ns"] for notice in ended),
                "took_ns": sum(notice["took_ns"] for notice in ended),
                "operations": len(ended),
            },
        )

    # -- to the agent ---------------------------------------------------------------------------------------

    def _connect(self, app: _Application) -> None:
        app.next_try = time.monotonic() + RECONNECT_S
        if not self._path.exists():
            return
        try:
            app.client = LocalClient(self._path, timeout_s=TIMEOUT_S)
        except (OSError, ValueError) as error:
            self._disconnected(app, error)
            return
        self._status = self._process.status()
        known = self._status.get("apps", {}).get(app.name, {})
        app.settings.version = 0  # another agent counts anew
        self._say(
            app,
            {
                "type": "io-start",
                "app": app.name,
                "host": self._host,
                "ranks": known.get("ranks", 0),
                "job_id": job_of(None),
                "aggregators": [self._name],
            },
        )
        if app.open is not None and app.done < app.op:
            self._say(app, app.open)

    def _report_all(self) -> None:
        if self._applications:
            self._status = self._process.status()
        for app in self._applications.values():
            self._report(app)

    def _report_served(self) -> None:
        """Report applications whose operation at this aggregator has ended since their last report."""
        now = time.monotonic()
        if not self._applications or now - self._looked_at < PROMPT_S:
            return
        self._looked_at = now
        self._status = self._process.status()
        for app in self._applications.values():
            served = self._status.get("served", {}).get(app.name)
            size, told_at = app.served
            if (
                served
                and served["bytes"] != size
                and not served["queue_bytes"]
                and now - told_at >= PROMPT_EVERY_S
            ):
                self._report(app)

    def _report(self, app: _Application) -> None:
        served = self._status.get("served", {}).get(app.name)
        known = self._status.get("apps", {}).get(app.name, {})
        waiting = known.get("phase") == "waiting"
        message: dict[str, Any] = {
            "type": "io-report",
            "version": app.settings.version,
            "waiting": app.op if waiting else 0,
            "bytes": known.get("op_bytes", 0) if waiting else 0,
        }
        if served is not None:
            app.served = (served["bytes"], time.monotonic())
            message["servers"] = [
                {
                    "aggregator": self._name,
                    "epoch": known.get("epoch", 0),
                    "bytes": served["bytes"],
                    "busy_ns": served["busy_ns"],
                    "writes": served["windows"],
                    "queue_bytes": served["queue_bytes"],
                }
            ]
        self._say(app, message)

    def _finish(self, app: _Application) -> None:
        if app.untold:
            self._tell_completed(app)
        self._say(app, {"type": "io-finish"})
        if app.client is not None:
            app.client.close()
            app.client = None

    def _say(self, app: _Application, message: Mapping[str, Any]) -> None:
        if app.client is None:
            return
        try:
            app.client.send(json.dumps(message).encode())
        except (OSError, ValueError) as error:
            self._disconnected(app, error)

    def _disconnected(self, app: _Application, error: BaseException | None) -> None:
        if app.client is not None:
            app.client.close()
            app.client, app.lost_at = None, time.monotonic()
        app.next_try = time.monotonic() + RECONNECT_S
        if error is not None:
            self._warn(str(error) or "it has disconnected")

    def _storage_of(self, path: bytes) -> str:
        folder = path.rpartition(b"/")[0]
        if folder not in self._storage:
            if len(self._storage) > 1000:
                self._storage.clear()
            self._storage[folder] = storage_of(folder)
        return self._storage[folder]

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the flow agent does not know of this I/O process, which goes on: %s", why)
