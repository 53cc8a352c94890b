"""A path in this process: it answers requests, and ends on request or by a signal.

Arrives: the native path, its profile; requests on a socket; SIGTERM, SIGINT, SIGHUP.
Leaves: answers; a path that is as was last asked.
Must not know: whether the path joins namespaces or relays datagrams.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from waystage._native import EmulatedPath, WanPathError
from waystage.experiment.problems import Problem
from waystage.worlds.lab.wan import control
from waystage.worlds.lab.wan.profile import WAYS, Profile, Way, check, described, native, said

LOOK_S = 0.5
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def work(profile: Profile) -> dict[str, Any]:
    """How the native path works, besides what it is like."""
    return {
        "seed": profile.seed,
        "tick_ns": profile.tick_ns,
        "late_ns": profile.late,
        "memory_bytes": profile.memory,
    }


@contextmanager
def first_in_line() -> Iterator[None]:
    """Threads begun meanwhile run before those of ordinary programs, where this process may ask for it.

    They sleep nearly always, and when a packet is due they must not wait for the programs that are measured.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


class Serving:
    """Answers requests: `status`, `set`, `end`."""

    def __init__(self, path: EmulatedPath, profile: Profile, about: dict[str, Any]) -> None:
        self._path = path
        self._profile = profile
        self._about = about
        self._began = time.monotonic()
        self._ending = False
        self._reader = -1

    @contextmanager
    def until_told(self) -> Iterator[None]:
        """Meanwhile SIGTERM, SIGINT and SIGHUP end `serve`, and raise nothing."""
        self._reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, self._end) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            os.close(self._reader)
            os.close(writer)

    def serve(self, listener: socket.socket) -> None:
        """Answer, until told to end by a request or a signal."""
        while not self._ending:
            readable, _, _ = select.select([listener.fileno(), self._reader], [], [], LOOK_S)
            if listener.fileno() in readable:
                self._answer(listener)

    def status(self) -> dict[str, Any]:
        """All counters and properties, by direction."""
        directions = {}
        for way, report in zip(WAYS, self._path.reports(), strict=True):
            directions[way] = {"is": described(self._profile, way)} | native(self._profile, way) | report
            directions[way]["rate_bps"] = min(directions[way]["rate_bps"], 1e15)  # JSON has no infinity
        return self._about | {
            "profile": self._profile.name,
            "seed": self._profile.seed,
            "seconds": round(time.monotonic() - self._began, 3),
            "directions": directions,
            "valid": all(d["valid"] for d in directions.values()),
        }

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    def _answer(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            request = control.take(connection)
            if request is None:
                return
            try:
                control.answer(connection, self._do(request))
            except (Problem, WanPathError, TypeError, ValueError, KeyError) as error:
                control.answer(connection, {"error": f"the path does not take this: {error}"})

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.get("do"):
            case "status":
                return self.status()
            case "set":
                ways: tuple[Way, ...] = tuple(way for way in WAYS if way in request["ways"])
                changed = self._profile.changed(ways, said(request["options"]))
                check(changed)
                # The other direction's buffer may be a multiple of the round trip, which has changed.
                for number, way in enumerate(WAYS):
                    self._path.change(number, native(changed, way))
                self._profile = changed
                return self.status()
            case "end":
                self._ending = True
                return {"ending": True}
        raise ValueError(f"{request.get('do')!r} is no request")


def listen(folder: Path) -> socket.socket:
    """The socket at which a path is asked, in its folder; a process that may write to it may change the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "control"))
    os.chmod(folder / "control", 0o600)
    listener.listen(8)
    return listener
