"""The journal of accepted events on disk: no event in it is accepted twice or lost.

Arrives: envelopes in order; decisions taken on them; snapshots of the state.
Leaves: the new envelopes; after a restart, the last snapshot and the events after it.
Must not know: Zenoh, policies.

SQLite with a write-ahead log, one transaction a batch. A committed batch survives the death of the process. `flush`
makes it survive a power failure (with `sync="full"`, the default): one fsync for all batches before it, before an event
is confirmed as journalled, but not before decisions are taken. SQLite's checksums cut a torn or corrupt tail of the log
at the last complete transaction; live publishers resend the rest. A damaged file, found at the start or later, is
renamed; the new one starts with the readable part of it, and publishers resend the rest.

Bounded: after `compact_after` events a snapshot is taken and older events are deleted, except the last `history`, which
are kept for subscribers whose publisher has exited.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from waystage.backplane import statefile
from waystage.backplane.keys import type_name
from waystage.controllers.salvage import Salvaged, salvage
from waystage.events import Action, Envelope, EventError, decode, decode_action, encode, encode_action

log = logging.getLogger(__name__)

Sync = Literal["full", "normal"]

IDS_KEPT = 1_000_000
"""Event ids remembered, so that an event forwarded again after a relay's restart is known: about 60 MB."""

SOURCES_KEPT = 200_000
"""Publishers whose place is remembered; every `waystage notify` is one."""

_COLUMNS = {
    "event": {
        "n": "integer",
        "source": "text",
        "type": "text",
        "seq": "integer",
        "previous": "integer|null",
        "time_ns": "integer",
        "data": "blob",
    },
    "seen": {"n": "integer", "id": "text"},
    "cursor": {"source": "text", "type": "text", "seq": "integer", "at": "integer", "gone": "integer"},
    "decision": {"n": "integer", "actions": "blob"},
    "snapshot": {"n": "integer", "state": "blob"},
    "about": {"key": "text", "value": "integer"},
}

_TABLES = """
CREATE TABLE event (n INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT, type TEXT, seq INTEGER,
    previous INTEGER, time_ns INTEGER, data BLOB);
CREATE INDEX event_source ON event (source, seq);
CREATE TABLE seen (n INTEGER PRIMARY KEY, id TEXT UNIQUE);
CREATE TABLE cursor (source TEXT, type TEXT, seq INTEGER, at INTEGER, gone INTEGER DEFAULT 0,
    PRIMARY KEY (source, type)) WITHOUT ROWID;
CREATE TABLE decision (n INTEGER PRIMARY KEY, actions BLOB);
CREATE TABLE snapshot (n INTEGER PRIMARY KEY, state BLOB);
CREATE TABLE about (key TEXT PRIMARY KEY, value INTEGER);
"""


class JournalError(RuntimeError):
    """A journal that cannot be opened or written; the message names the file and the fix."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted event and its place; 0 for one that is not journalled."""

    n: int
    envelope: Envelope


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go on: fold `entries` into `state` (None: a new one) with the `decisions` taken on them.

    Entries after `processed` were accepted, but what they call for may not have been done.
    """

    state: bytes | None
    entries: list[Entry]
    decisions: dict[int, tuple[Action, ...]]
    processed: int


class Journal:
    """One file, one process; thread-safe."""

    def __init__(
        self, path: Path, *, sync: Sync = "full", compact_after: int = 20_000, history: int = 10_000
    ) -> None:
        self.path = path
        self.compact_after, self.history = compact_after, history
        self._sync = sync
        self._lock = threading.RLock()
        self._last_n = 0
        try:
            statefile.private_folder(path.parent)
        except OSError as error:
            raise JournalError(
                f"cannot make {path.parent}: {error.strerror}: give a --state-dir to write to"
            ) from None
        try:
            try:
                self._db = self._open()
            except sqlite3.Error as error:
                if not statefile.is_damage(error, path):
                    raise
                self._replace(error)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(
                f"cannot open {path}: {statefile.reason(error)}: is another controller using it, is the disk full or read-only?"
            ) from None
        self._since_snapshot = self._count_since_snapshot()
        row = self._db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'event'").fetchone()
        self._last_n = int(row[0] or 0)

    # -- accepting ------------------------------------------------------------------------------

    def append(self, batch: list[tuple[Envelope, int | None]]) -> list[Entry]:
        """Write the new ones among `batch` (each with the number before it of its type), then return them.

        Duplicates, by id or by number, are left out. Raises JournalError where the disk refuses.
        """
        accepted: list[Entry] = []
        now = time.time_ns()
        with self._transaction() as db:
            for envelope, previous in batch:
                name = type_name(envelope.event)
                if envelope.seq and self._seq(db, envelope.source, name) >= envelope.seq:
                    continue
                if envelope.seq:
                    db.execute(
                        "INSERT INTO cursor (source, type, seq, at) VALUES (?, ?, ?, ?) ON CONFLICT (source, type) "
                        "DO UPDATE SET seq = excluded.seq, at = excluded.at",
                        (envelope.source, name, envelope.seq, now),
                    )
                if (
                    envelope.event_id
                    and db.execute("SELECT 1 FROM seen WHERE id = ?", (envelope.event_id,)).fetchone()
                ):
                    continue
                cursor = db.execute(
                    "INSERT INTO event (source, type, seq, previous, time_ns, data) VALUES (?, ?, ?, ?, ?, ?)",
                    (envelope.source, name, envelope.seq, previous, envelope.time_ns, encode(envelope)),
                )
                n = int(cursor.lastrowid or 0)
                if envelope.event_id:
                    db.execute("INSERT INTO seen VALUES (?, ?)", (n, envelope.event_id))
                accepted.append(Entry(n=n, envelope=envelope))
                self._last_n = max(self._last_n, n)
        self._since_snapshot += len(accepted)
        return accepted

    def flush(self) -> None:
        """What was appended survives a power failure from now on; nothing to do with `sync="normal"`."""
        self._check_place()
        if self._sync != "full":
            return
        try:
            handle = os.open(f"{self.path}-wal", os.O_RDONLY)
        except FileNotFoundError:
            return  # checkpointed, which flushes
        except OSError as error:
            raise JournalError(f"cannot flush {self.path}: {error.strerror}") from error
        try:
            os.fdatasync(handle)
        except OSError as error:
            raise JournalError(f"cannot flush {self.path}: {error.strerror}: is the disk failing?") from error
        finally:
            os.close(handle)

    def record(self, processed: int, decisions: dict[int, tuple[Action, ...]]) -> None:
        """Everything up to `processed` has been dealt with, and these decisions were taken."""
        with self._transaction() as db:
            for n, actions in decisions.items():
                data = msgspec.json.encode([encode_action(action) for action in actions])
                db.execute("INSERT OR REPLACE INTO decision VALUES (?, ?)", (n, data))
            db.execute("INSERT OR REPLACE INTO about VALUES ('processed', ?)", (processed,))

    @property
    def wants_snapshot(self) -> bool:
        return self._since_snapshot >= self.compact_after

    def compact(self, n: int, state: bytes) -> None:
        """`state` is what the events up to `n` make; older events go, but for the history."""
        with self._transaction() as db:
            db.execute("DELETE FROM snapshot")
            db.execute("INSERT INTO snapshot VALUES (?, ?)", (n, state))
            oldest = n - self.history
            db.execute(
                "UPDATE cursor SET gone = max(gone, ifnull((SELECT max(e.seq) FROM event e WHERE e.source = "
                "cursor.source AND e.type = cursor.type AND e.n <= ?), 0))",
                (oldest,),
            )
            db.execute("DELETE FROM event WHERE n <= ?", (oldest,))
            db.execute("DELETE FROM decision WHERE n <= ?", (n,))
            db.execute("DELETE FROM seen WHERE n <= ?", (n - IDS_KEPT,))
            db.execute(
                "DELETE FROM cursor WHERE source IN (SELECT source FROM cursor GROUP BY source "
                "ORDER BY max(at) DESC LIMIT -1 OFFSET ?)",
                (SOURCES_KEPT,),
            )
        with self._reading() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._since_snapshot = self._count_since_snapshot()

    # -- reading --------------------------------------------------------------------------------

    def restore(self) -> Restored:
        """The last snapshot and what came after it. An entry that cannot be read is left out, and said so."""
        with self._reading() as db:
            row = db.execute("SELECT n, state FROM snapshot ORDER BY n DESC LIMIT 1").fetchone()
            start, state = (int(row[0]), bytes(row[1])) if row else (0, None)
            found = db.execute("SELECT value FROM about WHERE key = 'processed'").fetchone()
            processed = max(start, int(found[0]) if found else 0)
            rows = db.execute("SELECT n, data FROM event WHERE n > ? ORDER BY n", (start,)).fetchall()
            taken = db.execute("SELECT n, actions FROM decision WHERE n > ?", (start,)).fetchall()
        entries: list[Entry] = []
        for n, data in rows:
            try:
                entries.append(Entry(n=n, envelope=decode(bytes(data))))
            except EventError as error:
                log.error("entry %d of %s is left out: %s", n, self.path, error)
        return Restored(
            state=state,
            entries=entries,
            decisions={n: _actions(bytes(data)) for n, data in taken},
            processed=processed,
        )

    def replay(
        self, source: str, asked: str, wanted: Callable[[str, int, int], bool]
    ) -> tuple[list[tuple[str, int, bytes]], dict[str, int]]:
        """Kept events of `source`, in order, for which `wanted(type, seq, time_ns)`; and what is gone, by type."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT type, seq, previous, time_ns, data FROM event WHERE source = ? AND seq > 0 ORDER BY seq",
                (source,),
            ).fetchall()
            gone = db.execute(
                "SELECT type, gone FROM cursor WHERE source = ? AND gone > 0", (source,)
            ).fetchall()
        items = [
            (name, previous or 0, bytes(data))
            for name, seq, previous, time_ns, data in rows
            if asked in ("*", name) and wanted(name, seq, time_ns)
        ]
        missed = {name: seq for name, seq in gone if asked in ("*", name) and wanted(name, seq, 0)}
        return items, missed

    def events(self) -> Iterator[Envelope]:
        """Every event still kept that can be read, in order."""
        with self._reading() as db:
            rows = db.execute("SELECT data FROM event ORDER BY n").fetchall()
        for (data,) in rows:
            try:
                yield decode(bytes(data))
            except EventError as error:
                log.error("an entry of %s is left out: %s", self.path, error)

    def cursors(self) -> dict[str, dict[str, int]]:
        """Source -> type -> number of the last event accepted."""
        found: dict[str, dict[str, int]] = {}
        with self._reading() as db:
            for source, name, seq in db.execute("SELECT source, type, seq FROM cursor"):
                found.setdefault(source, {})[name] = seq
        return found

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # -- inside -----------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        new = statefile.make_private(self.path)
        db = sqlite3.connect(self.path, check_same_thread=False, timeout=2.0, isolation_level=None)
        try:
            with statefile.text_checked():
                # Another process must not write in between: the state in memory would no longer follow.
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                if new:
                    db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
                # Checking indexes against their tables would read a million ids.
                statefile.check(db, _COLUMNS, quick=True)
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                statefile.write_nothing(db)
            self._inode = os.stat(self.path).st_ino
        except BaseException:
            db.close()
            raise
        return db

    def _check_place(self) -> None:
        """Raises JournalError where the file was removed or replaced: what is written then is gone with this
        process."""
        with self._lock:
            try:
                found = os.stat(self.path).st_ino
            except OSError:
                found = 0
            if found != self._inode:
                raise self._failure("flush", statefile.Damaged("it was removed or replaced"))

    def _replace(self, error: Exception) -> None:
        """Put the damaged file aside and begin another with what can be read of it."""
        aside = statefile.put_aside(self.path)
        self._db = self._open()
        found = salvage(aside, self._db)
        self._db.execute(
            "INSERT INTO sqlite_sequence (name, seq) SELECT 'event', 0 WHERE NOT EXISTS "
            "(SELECT 1 FROM sqlite_sequence WHERE name = 'event')"
        )
        self._db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'event'", (self._last_n,))
        log.error(
            "%s is damaged (%s): kept as %s, and a new one begun; %s",
            self.path,
            statefile.reason(error),
            aside.name,
            _told(found),
        )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                with statefile.text_checked():
                    yield self._db
            except sqlite3.Error as error:
                raise self._failure("read", error) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    if self._db.in_transaction:  # SQLite has ended it itself where the disk failed
                        self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._failure("write", error) from None

    def _failure(self, doing: str, error: sqlite3.Error) -> JournalError:
        """What to raise; a damaged file has been replaced then, so that another try may work."""
        if not statefile.is_damaged_page(error):
            return JournalError(f"cannot {doing} {self.path}: {statefile.reason(error)}: is the disk full?")
        try:
            self._db.close()
            self._replace(error)
        except (OSError, sqlite3.Error) as other:
            return JournalError(
                f"{self.path} is damaged, and no new one can be begun: {statefile.reason(other)}"
            )
        # The state in memory is whole: a snapshot of it goes into the new file next.
        self._since_snapshot = self.compact_after
        return JournalError(f"cannot {doing} {self.path}: it was damaged, and a new one has been begun")

    def _seq(self, db: sqlite3.Connection, source: str, name: str) -> int:
        row = db.execute("SELECT seq FROM cursor WHERE source = ? AND type = ?", (source, name)).fetchone()
        return int(row[0]) if row else 0

    def _count_since_snapshot(self) -> int:
        row = self._db.execute(
            "SELECT count(*) FROM event WHERE n > ifnull((SELECT max(n) FROM snapshot), 0)"
        ).fetchone()
        return int(row[0])


def _told(found: Salvaged) -> str:
    state = "the last snapshot of the state" if found.snapshot else "no snapshot of the state"
    rest = "all of its events" if found.whole and found.events else f"{found.events} events"
    return (
        f"{state} and {rest} could be read from it; publishers that live are asked for what they hold, and events of others "
        "after these are lost"
    )


def _actions(data: bytes) -> tuple[Action, ...]:
    found: list[Action] = []
    for raw in msgspec.json.decode(data, type=list[msgspec.Raw]):
        try:
            found.append(decode_action(raw))
        except EventError as error:
            log.error("a decision in the journal is left out: %s", error)
    return tuple(found)
