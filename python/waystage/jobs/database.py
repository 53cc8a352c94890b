"""The job information database (Endo et al. 2020, section IV.C.2): job id, nodes, staging flag, times.

Arrives: envelopes of job, staging and I/O events, in any order, any number of times.
Leaves: the state of each job, in one SQLite file.
Must not know: the origin of events, policies, paths.

For each activity of a job (its run, a stage-in, a stage-out, its I/O), the database keeps the latest start and the
latest end; the activity is in progress if the start is later. The same events in any order therefore give the same
database, a repeated event has no effect, and `state.State` agrees with it. A damaged file is renamed, and a new one
is built from the events still available.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import msgspec

from waystage.backplane import statefile
from waystage.events import (
    Envelope,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    StagingFinished,
    StagingStarted,
)

log = logging.getLogger(__name__)

SCHEMA = 1

JOB_EVENTS = (JobStarted, JobFinished, StagingStarted, StagingFinished, IoStarted, IoFinished)
"""What the database takes note of: the properties to subscribe with."""

_CREATE = """
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    nodes TEXT NOT NULL DEFAULT '[]',
    nodes_ns INTEGER NOT NULL DEFAULT -1
) WITHOUT ROWID;
CREATE TABLE activities (
    job_id TEXT NOT NULL REFERENCES jobs(job_id) ON DELETE CASCADE,
    activity TEXT NOT NULL CHECK (activity IN ('run', 'stage-in', 'stage-out', 'io')),
    started_ns INTEGER NOT NULL DEFAULT -1,
    ended_ns INTEGER NOT NULL DEFAULT -1,
    bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, activity)
) WITHOUT ROWID;
"""

_COLUMNS = {
    "jobs": {"job_id": "text", "nodes": "text", "nodes_ns": "integer"},
    "activities": {
        "job_id": "text",
        "activity": "text",
        "started_ns": "integer",
        "ended_ns": "integer",
        "bytes": "integer",
    },
}

_START = """
INSERT INTO activities (job_id, activity, started_ns, bytes) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET
    bytes = CASE WHEN ?3 >= started_ns THEN ?4 ELSE bytes END,
    started_ns = max(started_ns, ?3)
"""
_END = """
INSERT INTO activities (job_id, activity, ended_ns) VALUES (?1, ?2, ?3)
ON CONFLICT DO UPDATE SET ended_ns = max(ended_ns, ?3)
"""
_NODES = "UPDATE jobs SET nodes = ?2, nodes_ns = ?3 WHERE job_id = ?1 AND nodes_ns <= ?3"


class DatabaseError(RuntimeError):
    """A database file that cannot be used; the message names it and the fix."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """`*_ns` are None for never. `active`: started after it last ended."""

    started_ns: int | None
    ended_ns: int | None
    bytes: int = 0

    @property
    def active(self) -> bool:
        return self.started_ns is not None and (self.ended_ns is None or self.started_ns > self.ended_ns)


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one job."""

    job_id: str
    nodes: tuple[str, ...]
    activities: dict[str, Activity]

    @property
    def running(self) -> bool:
        return self._active("run")

    @property
    def staging(self) -> bool:
        """The staging flag of the paper's job information."""
        return self._active("stage-in") or self._active("stage-out")

    @property
    def io(self) -> bool:
        """I/O in progress; the end of the job ends it too."""
        run, io = self.activities.get("run"), self.activities.get("io")
        if io is None or not io.active:
            return False
        return run is None or run.ended_ns is None or (io.started_ns or 0) > run.ended_ns

    def _active(self, name: str) -> bool:
        activity = self.activities.get(name)
        return activity is not None and activity.active


class JobDatabase:
    """One SQLite file; safe to use from several threads, and from several processes one after another.

    `rebuild` gives the events from which a damaged file is made anew, as far as they are still to be had.
    """

    def __init__(self, path: Path | str, rebuild: Callable[[], Iterable[Envelope]] | None = None) -> None:
        """Opens or creates `path`. Raises DatabaseError."""
        self._path = str(path)
        self._lock = threading.RLock()
        self._rebuild = rebuild
        folder = Path(self._path).parent
        try:
            if self._path != ":memory:":
                statefile.private_folder(folder)
        except OSError as error:
            raise DatabaseError(
                f"cannot make {folder}: {error.strerror}: give a --state-dir to write to"
            ) from None
        try:
            try:
                self._db = self._open()
            except sqlite3.Error as error:
                if not statefile.is_damage(error, Path(self._path)):
                    raise
                self._replace(error)
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(
                f"job database {self._path}: {statefile.reason(error)}: is it in use, is the disk full, or the "
                "folder not one to write to?"
            ) from None

    def __enter__(self) -> JobDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def record(self, item: Envelope) -> None:
        """Take note of one event; what is no event of a job is ignored. Raises DatabaseError where the disk refuses."""
        with self._lock:
            try:
                try:
                    self._record(item)
                except sqlite3.Error as error:
                    self._recover(error)
                    self._record(item)
            except (OSError, sqlite3.Error) as error:
                raise DatabaseError(
                    f"cannot write {self._path}: {statefile.reason(error)}: is the disk full?"
                ) from None

    def _record(self, item: Envelope) -> None:
        event = item.event
        if isinstance(event, JobStarted):
            self._note(_START, event.job_id, "run", item.time_ns, 0, nodes=event.nodes)
        elif isinstance(event, JobFinished):
            self._note(_END, event.job_id, "run", item.time_ns)
        elif isinstance(event, StagingStarted):
            name, nodes = f"stage-{event.direction}", event.nodes
            self._note(_START, event.job_id, name, item.time_ns, max(0, event.bytes), nodes=nodes)
        elif isinstance(event, StagingFinished):
            self._note(_END, event.job_id, f"stage-{event.direction}", item.time_ns)
        elif isinstance(event, IoStarted):
            self._note(_START, event.job_id, "io", item.time_ns, max(0, event.bytes))
        elif isinstance(event, IoFinished):
            self._note(_END, event.job_id, "io", item.time_ns)

    def job(self, job_id: str) -> JobRow | None:
        """What is known of `job_id`, or None."""
        found = self._select("WHERE jobs.job_id = ?", (job_id,))
        return found[0] if found else None

    def jobs(self) -> list[JobRow]:
        """Every job, by id."""
        return self._select("", ())

    def prune(self, before_ns: int) -> int:
        """Delete inactive jobs whose last event is before `before_ns`; returns their number."""
        old = [
            row.job_id
            for row in self.jobs()
            if not (row.running or row.staging or row.io)
            and max((max(a.started_ns or 0, a.ended_ns or 0) for a in row.activities.values()), default=0)
            < before_ns
        ]
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("DELETE FROM jobs WHERE job_id = ?", [(job_id,) for job_id in old])
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                self._end_transaction()
                try:
                    self._recover(error)
                except (OSError, sqlite3.Error) as other:
                    raise DatabaseError(f"cannot write {self._path}: {statefile.reason(other)}") from None
        return len(old)

    def _open(self) -> sqlite3.Connection:
        path = None if self._path == ":memory:" else Path(self._path)
        new = path is None or statefile.make_private(path)
        db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            with statefile.text_checked():
                if new:
                    db.executescript(f"BEGIN IMMEDIATE; {_CREATE} PRAGMA user_version = {SCHEMA}; COMMIT;")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version != SCHEMA:
                    raise statefile.Damaged(f"its schema is {version}, and this Waystage reads {SCHEMA}")
                statefile.check(db, _COLUMNS, quick=False)
                for (nodes,) in db.execute("SELECT nodes FROM jobs"):
                    _nodes(nodes)
                db.execute("PRAGMA journal_mode = WAL")
                # With a write-ahead log NORMAL loses no consistency, and at most the last moments on a power cut; the
                # controllers' journal has those.
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("PRAGMA foreign_keys = ON")
                statefile.write_nothing(db)
        except BaseException:
            db.close()
            raise
        return db

    def _recover(self, error: sqlite3.Error) -> None:
        """Go on with a new file where the pages are damaged; raises `error` itself where they are not."""
        if not statefile.is_damaged_page(error) or self._path == ":memory:":
            raise error
        self._db.close()
        self._replace(error)

    def _replace(self, error: Exception) -> None:
        aside = statefile.put_aside(Path(self._path))
        self._db = self._open()
        count = 0
        for item in self._rebuild() if self._rebuild is not None else ():
            self._record(item)
            count += 1
        log.error(
            "%s is damaged (%s): kept as %s, and a new one made from %d events and jobs that the controller knows; jobs "
            "that ended before them are missing",
            self._path,
            statefile.reason(error),
            aside.name,
            count,
        )

    def _end_transaction(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def _note(
        self,
        statement: str,
        job_id: str,
        activity: str,
        time_ns: int,
        *values: int,
        nodes: tuple[str, ...] = (),
    ) -> None:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.execute("INSERT OR IGNORE INTO jobs (job_id) VALUES (?)", (job_id,))
                self._db.execute(statement, (job_id, activity, time_ns, *values))
                if nodes:
                    self._db.execute(_NODES, (job_id, json.dumps(nodes), time_ns))
                self._db.execute("COMMIT")
            except BaseException:
                self._end_transaction()  # SQLite has ended it itself where the disk failed
                raise

    def _select(self, where: str, values: tuple[str, ...]) -> list[JobRow]:
        query = (
            "SELECT jobs.job_id, nodes, activity, started_ns, ended_ns, bytes FROM jobs"
            f" LEFT JOIN activities USING (job_id) {where} ORDER BY jobs.job_id, activity"
        )
        with self._lock:
            try:
                try:
                    return self._rows(query, values)
                except sqlite3.Error as error:
                    self._recover(error)
                    return self._rows(query, values)
            except (OSError, sqlite3.Error) as error:
                raise DatabaseError(f"cannot read {self._path}: {statefile.reason(error)}") from None

    def _rows(self, query: str, values: tuple[str, ...]) -> list[JobRow]:
        with statefile.text_checked():
            rows = self._db.execute(query, values).fetchall()
        found: dict[str, JobRow] = {}
        for job_id, nodes, activity, started, ended, count in rows:
            row = found.setdefault(job_id, JobRow(job_id=job_id, nodes=_nodes(nodes), activities={}))
            if activity is not None:
                row.activities[activity] = Activity(
                    started_ns=None if started < 0 else started,
                    ended_ns=None if ended < 0 else ended,
                    bytes=count,
                )
        return list(found.values())


def _nodes(text: str) -> tuple[str, ...]:
    """Raises Damaged where they are no list of names."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise statefile.Damaged(f"the nodes of a job are {text[:40]!r}")
    return tuple(found)
