"""Feeds the job database from a subscription that survives restarts, damage and write errors.

Arrives: events of jobs; after the loss of its cursor, the controller's state of jobs.
Leaves: the job database, complete as far as events are available.
Must not know: the database's tables, policies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from waystage.backplane import Backplane
from waystage.backplane.cursors import FileCursors
from waystage.events import Envelope
from waystage.jobs.database import JOB_EVENTS, DatabaseError, JobDatabase

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""A disk that refuses is tried again after this long; meanwhile publishers and the journal hold what is not written."""


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
        cursors = FileCursors(state_dir, "job-database")
        if cursors.lost:
            for item in known():  # repeated notifications change nothing
                self._record(item)
        self._told = backplane.subscribe(JOB_EVENTS, self._record, durable=cursors)

    def close(self) -> None:
        """Stop; waits for an event that is being recorded."""
        self._stopping.set()
        self._told.close()

    def _record(self, item: Envelope) -> None:
        said = False
        while True:
            try:
                self._jobs.record(item)
                return
            except DatabaseError as error:
                if not said:
                    log.error("%s; tried again until it works", error)
                    said = True
                if self._stopping.wait(RETRY_S):
                    return
