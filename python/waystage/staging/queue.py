"""The queue: requests, events to publish and measured rates, in one SQLite file that outlives any kill.

Arrives: submissions, changes of requests.
Leaves: the same requests after a restart; what was committed is on the disk.
Must not know: sockets, processes, who may do what.

Open requests (not final) are also held in memory, so that decisions read no table; every change is written before
anything follows from it. A damaged file is renamed, and the stager goes on with an empty one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from waystage.backplane import statefile
from waystage.events import Event, decode, encode, envelope
from waystage.staging.errors import StagingError
from waystage.staging.measured import Sample, kept
from waystage.staging.requests import Request, State

log = logging.getLogger(__name__)

SCHEMA = 1

_CREATE = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    finished_ns INTEGER NOT NULL,
    value TEXT NOT NULL
);
CREATE UNIQUE INDEX requests_by_key ON requests (uid, key) WHERE key != '';
CREATE INDEX requests_by_job ON requests (job_id);
CREATE INDEX requests_by_state ON requests (state, uid, finished_ns);
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    uid INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event TEXT NOT NULL
);
CREATE TABLE rates (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid INTEGER NOT NULL,
    pair TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    seconds_ns INTEGER NOT NULL,
    ended_ns INTEGER NOT NULL
);
CREATE INDEX rates_by_pair ON rates (pair, id);
"""

_COLUMNS = {
    "requests": {
        "id": "integer",
        "uid": "integer",
        "job_id": "text",
        "key": "text",
        "state": "text",
        "finished_ns": "integer",
        "value": "text",
    },
    "jobs": {"job_id": "text", "uid": "integer"},
    "outbox": {"id": "integer", "event": "text"},
    "rates": {
        "id": "integer",
        "uid": "integer",
        "pair": "text",
        "bytes": "integer",
        "files": "integer",
        "seconds_ns": "integer",
        "ended_ns": "integer",
    },
}

MOST_OUTBOX = 100_000
"""Events that wait for a controller; beyond it the oldest are dropped."""


class _Row(NamedTuple):
    number: int
    sample: Sample

    @property
    def bytes(self) -> int:
        return self.sample.bytes

    @property
    def files(self) -> int:
        return self.sample.files

    @property
    def seconds(self) -> float:
        return self.sample.seconds


class Queue:
    """For one thread. A context manager."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. Raises StagingError."""
        self._path = path
        try:
            statefile.private_folder(path.parent)
            try:
                self._db = self._open()
            except sqlite3.Error as error:
                if not statefile.is_damage(error, path):
                    raise
                aside = statefile.put_aside(path)
                log.error(
                    "%s is damaged (%s): kept as %s; the queue begins empty, submit its requests again",
                    path,
                    statefile.reason(error),
                    aside.name,
                )
                self._db = self._open()
        except (OSError, sqlite3.Error) as error:
            raise StagingError(
                f"queue {path}: {statefile.reason(error)}: is the disk full, or the folder not one to write to?"
            ) from None
        self.open: dict[int, Request] = {
            each.id: each for each in self._select("state NOT IN ('done', 'failed', 'cancelled')", ())
        }

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes of the block, or none; on disk at its end. Raises StagingError where the disk refuses.

        What the block changed in memory is read again after a failure.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            with contextlib.suppress(sqlite3.Error):
                self.open = {
                    each.id: each for each in self._select("state NOT IN ('done', 'failed', 'cancelled')", ())
                }
            if isinstance(error, sqlite3.Error):
                raise StagingError(
                    f"queue {self._path}: {statefile.reason(error)}: is its disk full?"
                ) from None
            raise

    def add(self, request: Request) -> Request:
        """The request with its id; within a transaction."""
        cursor = self._db.execute(
            "INSERT INTO requests (uid, job_id, key, state, finished_ns, value) VALUES (?, ?, ?, ?, 0, '')",
            (request.uid, request.submission.job_id, request.key, request.state),
        )
        assert cursor.lastrowid is not None
        request.id = cursor.lastrowid
        self.write(request)
        return request

    def write(self, request: Request) -> None:
        """Store a changed request; within a transaction."""
        self._db.execute(
            "UPDATE requests SET state = ?, finished_ns = ?, value = ? WHERE id = ?",
            (request.state, request.finished_ns, _dump(request), request.id),
        )
        if request.final:
            self.open.pop(request.id, None)
        else:
            self.open[request.id] = request

    def find(self, number: int) -> Request | None:
        if number in self.open:
            return self.open[number]
        return next(iter(self._select("id = ?", (number,))), None)

    def of_key(self, uid: int, key: str) -> Request | None:
        found = next(iter(self._select("uid = ? AND key = ? AND key != ''", (uid, key))), None)
        return found if found is None else self.open.get(found.id, found)

    def listed(self, *, job_id: str | None = None, uid: int | None = None, most: int = 1000) -> list[Request]:
        """Requests by id, the latest `most`, of one job or user where given."""
        where, values = ["1"], list[Any]()
        for column, value in (("job_id", job_id), ("uid", uid)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        found = self._select(f"{' AND '.join(where)} ORDER BY id DESC LIMIT ?", (*values, most))
        return [self.open.get(each.id, each) for each in reversed(found) if not each.submission.dry_run]

    def owner(self, job_id: str) -> int | None:
        """The user whose job it is, as far as submissions say."""
        row = self._db.execute("SELECT uid FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else int(row[0])

    def own(self, job_id: str, uid: int) -> None:
        """Note whose job it is; within a transaction."""
        self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (job_id, uid))

    def announce(self, event: Event) -> None:
        """An event to publish; within a transaction."""
        self._db.execute("INSERT INTO outbox (event) VALUES (?)", (encode(envelope(event)).decode("utf-8"),))
        self._db.execute("DELETE FROM outbox WHERE id <= (SELECT max(id) FROM outbox) - ?", (MOST_OUTBOX,))

    def unpublished(self, most: int = 100) -> list[tuple[int, Event]]:
        """Events to publish, the oldest first."""
        rows = self._db.execute("SELECT id, event FROM outbox ORDER BY id LIMIT ?", (most,)).fetchall()
        return [(number, decode(text.encode("utf-8")).event) for number, text in rows]

    def published(self, last: int) -> None:
        """The events up to this one have been published."""
        self._db.execute("DELETE FROM outbox WHERE id <= ?", (last,))

    def measured(self, uid: int, pair: str, sample: Sample, now_ns: int) -> None:
        """Keep a measured transfer of this pair of ends; within a transaction."""
        self._db.execute(
            "INSERT INTO rates (uid, pair, bytes, files, seconds_ns, ended_ns) VALUES (?, ?, ?, ?, ?, ?)",
            (uid, pair, sample.bytes, sample.files, int(sample.seconds * 1e9), now_ns),
        )
        rows = self._db.execute(
            "SELECT id, bytes, files, seconds_ns FROM rates WHERE uid = ? AND pair = ? ORDER BY id DESC",
            (uid, pair),
        ).fetchall()
        found = [_Row(number, Sample(size, files, ns / 1e9)) for number, size, files, ns in rows]
        lasting = {each.number for each in kept(found)}
        gone = [(each.number,) for each in found if each.number not in lasting]
        self._db.executemany("DELETE FROM rates WHERE id = ?", gone)

    def samples(self, uid: int, pair: str) -> tuple[list[Sample], bool]:
        """Transfers measured between this pair of ends, the latest first, and whether they are the user's own: others
        count only where there are none, since what an engine reports is in its user's hands."""
        rows = self._db.execute(
            "SELECT uid, bytes, files, seconds_ns FROM rates WHERE pair = ? ORDER BY id DESC LIMIT 10000",
            (pair,),
        ).fetchall()
        own = any(row[0] == uid for row in rows)
        taken = [row for row in rows if not own or row[0] == uid]
        return [Sample(count, files, seconds / 1e9) for _, count, files, seconds in taken], own

    def prune(self, before_ns: int, most_per_user: int) -> int:
        """Forget final requests that ended before `before_ns`, and all but the latest of each user; their number.

        Forgets whose jobs they were where no request of the job is left.
        """
        gone = self._db.execute(
            "DELETE FROM requests WHERE state IN ('done', 'failed', 'cancelled') AND (finished_ns < ? OR id IN ("
            "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY uid ORDER BY id DESC) AS place FROM requests"
            " WHERE state IN ('done', 'failed', 'cancelled')) WHERE place > ?))",
            (before_ns, most_per_user),
        ).rowcount
        if gone:
            self._db.execute("DELETE FROM jobs WHERE job_id NOT IN (SELECT job_id FROM requests)")
        return gone

    def _open(self) -> sqlite3.Connection:
        new = statefile.make_private(self._path)
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            with statefile.text_checked():
                if new:
                    db.executescript(f"BEGIN IMMEDIATE; {_CREATE} PRAGMA user_version = {SCHEMA}; COMMIT;")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version != SCHEMA:
                    raise statefile.Damaged(f"its schema is {version}, and this Waystage reads {SCHEMA}")
                statefile.check(db, _COLUMNS, quick=False)
                db.execute("PRAGMA journal_mode = WAL")
                # A submit that was answered must outlive a power cut: the client may be gone.
                db.execute("PRAGMA synchronous = FULL")
                statefile.write_nothing(db)
                self._db = db
                self._select("1", ())
        except BaseException:
            db.close()
            raise
        return db

    def _select(self, where: str, values: Iterable[Any]) -> list[Request]:
        with statefile.text_checked():
            rows = self._db.execute(
                f"SELECT id, uid, state, value FROM requests WHERE {where}", tuple(values)
            ).fetchall()
        return [_load(*row) for row in rows]


def _dump(request: Request) -> str:
    # Not msgspec: a path that is not UTF-8 holds lone surrogates, which JSON can escape and UTF-8 cannot encode.
    return json.dumps(msgspec.to_builtins(request))


def _load(number: int, uid: int, state: State, text: str) -> Request:
    try:
        request = msgspec.convert(json.loads(text), Request)
        if (request.id, request.uid, request.state) != (number, uid, state):
            raise ValueError("it does not fit its row")
    except (ValueError, RecursionError) as error:
        raise statefile.Damaged(f"request {number} cannot be read: {str(error)[:80]}") from None
    return request
