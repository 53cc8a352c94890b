"""Feeds the job database from a subscription that survives restarts, damage and write errors.

Arrives: events of jobs; at the start, those that the controller's journal has and the database has not.
Leaves: the job database, complete as far as events are available.
Must not know: the database's tables, policies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from waystage.backplane import Backplane, keys
from waystage.backplane.cursors import FileCursors
from waystage.events import Envelope
from waystage.jobs.database import JOB_EVENTS, DatabaseError, JobDatabase

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""A disk that refuses is tried again after this long; meanwhile publishers and the journal hold what is not written."""

STOP_S = 30.0
"""How long to record what has arrived before the end; the journal has the rest for the next start."""


class JobKeeper:
    """Raises BackplaneError where the place of the subscription cannot be kept. Close it before the database."""

    def __init__(
        self,
        backplane: Backplane,
        jobs: JobDatabase,
        known: Callable[[], Iterable[Envelope]],
        state_dir: Path,
    ) -> None:
        self._jobs = jobs
        self._stopping = threading.Event()
        self._cursors = _Cursors(state_dir, "job-database")
        self._catch_up(known())
        self._told = backplane.subscribe(JOB_EVENTS, self._record, durable=self._cursors)

    def close(self) -> None:
        """Record what has arrived, then stop."""
        self._stopping.set()
        self._told.drain(STOP_S)
        self._told.close()

    def _catch_up(self, known: Iterable[Envelope]) -> None:
        """Publishers that have ended cannot be asked, and the journal answers nothing before the controller starts."""
        places, done = self._cursors.load(), list[tuple[str, str, int]]()
        for item in known:  # repeated notifications change nothing
            name = keys.type_name(item.event)
            if self._cursors.lost or item.seq > places.get(item.source, {}).get(name, 0):
                self._record(item)
                if item.seq and isinstance(item.event, JOB_EVENTS):
                    done.append((item.source, name, item.seq))
        if done:
            self._cursors.save(done)

    def _record(self, item: Envelope) -> None:
        said = False
        while not self._cursors.stays:
            try:
                self._jobs.record(item)
                return
            except DatabaseError as error:
                if not said:
                    log.error("%s; tried again until it works", error)
                    said = True
                self._cursors.stays = self._stopping.wait(RETRY_S)


class _Cursors(FileCursors):
    """`stays`: an event was not recorded, and the next start gets it and what came after it."""

    stays = False

    def save(self, done: list[tuple[str, str, int]]) -> None:
        if not self.stays:
            super().save(done)
