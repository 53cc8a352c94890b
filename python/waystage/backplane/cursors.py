"""Cursor files of durable subscribers.

Arrives: source, type and number of each handled event.
Leaves: the same after a restart.
Must not know: Zenoh, the contents of events.

SQLite with a write-ahead log and `synchronous=NORMAL`: survives `kill -9` of the process; after a power
failure the last events may be delivered again, which is why each carries its id.

A damaged file is renamed. If the damage is found at the start, the cursors are lost, and all cached events are
delivered again; if later, they are rewritten from memory. A write error delays writing and stops nothing.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from pathlib import Path
from typing import Protocol

from waystage.backplane import statefile
from waystage.backplane.config import BackplaneError

log = logging.getLogger(__name__)

SOURCES_KEPT = 100_000
"""Sources remembered; a site's short-lived publishers add one each, so the oldest must go."""

DAY_NS = 24 * 3600 * 10**9
"""A file from further in the future than a clock is put right by is damaged."""

_COLUMNS = {
    "cursor": {"source": "text", "type": "text", "seq": "integer", "at": "integer"},
    "about": {"key": "text", "value": "text"},
}

_TABLES = """
CREATE TABLE cursor (source TEXT, type TEXT, seq INTEGER, at INTEGER, PRIMARY KEY (source, type)) WITHOUT ROWID;
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT);
"""


class CursorStore(Protocol):
    """What a durable subscription needs of the keeper of its place.

    `asks_journal`: whether events of publishers that are gone are to be had elsewhere, from a controller's journal.
    `lost`: places were kept and are lost; events may have been missed whose publishers cannot be asked.
    """

    since_ns: int
    asks_journal: bool
    lost: bool

    def load(self) -> dict[str, dict[str, int]]: ...
    def save(self, done: list[tuple[str, str, int]]) -> None: ...
    def close(self) -> None: ...


class FileCursors:
    """One SQLite file a subscriber name. Raises BackplaneError where it cannot be opened or is held."""

    asks_journal = True

    def __init__(self, state_dir: Path, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise BackplaneError(f"durable name {name!r}: use 1 to 64 letters, digits, '_', '.' or '-'")
        self.path = state_dir / f"{name}.cursor"
        self.lost = False
        self._refused = False
        # Source and type -> number, and when it came: what the file holds, and what could not be written yet.
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._unwritten: dict[tuple[str, str], tuple[int, int]] = {}
        try:
            statefile.private_folder(state_dir)
            try:
                self._db = self._open(time.time_ns())
            except sqlite3.Error as error:
                if not statefile.is_damage(error, self.path):
                    raise
                self._replace(error, since_ns=0)
                self.lost = True
        except (OSError, sqlite3.Error) as error:
            raise BackplaneError(
                f"cannot keep the place of {name!r} in {self.path}: {statefile.reason(error)}: is it in use, "
                "or the folder not one to write to?"
            ) from None

    def load(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (source, type_name), (seq, _) in self._places.items():
            found.setdefault(source, {})[type_name] = seq
        return found

    def save(self, done: list[tuple[str, str, int]]) -> None:
        """Never raises: what cannot be written is kept, and written with what comes next."""
        now = time.time_ns()
        for source, type_name, seq in done:
            last, _ = self._places.get((source, type_name), (0, 0))
            place = max(last, seq), now
            self._places.pop((source, type_name), None)
            self._places[source, type_name] = self._unwritten[source, type_name] = place
        while len(self._places) > SOURCES_KEPT:
            del self._places[next(iter(self._places))]
        try:
            try:
                self._write(self._unwritten)
            except sqlite3.Error as error:
                if not statefile.is_damaged_page(error):
                    raise
                self._db.close()
                self._replace(error, since_ns=self.since_ns)
                self._write(self._places)
            self._unwritten.clear()
            self._refused = False
        except (OSError, sqlite3.Error) as error:
            if not self._refused:
                self._refused = True
                log.error(
                    "cannot write %s: %s; going on, events may come again after a restart",
                    self.path,
                    statefile.reason(error),
                )

    def close(self) -> None:
        try:
            if self._unwritten:
                self._write(self._unwritten)
            with self._db:
                self._db.execute(
                    "DELETE FROM cursor WHERE source NOT IN (SELECT source FROM cursor "
                    "GROUP BY source ORDER BY max(at) DESC LIMIT ?)",
                    (SOURCES_KEPT,),
                )
        except sqlite3.Error as error:
            log.error("cannot write %s at the end: %s", self.path, statefile.reason(error))
        self._db.close()

    def _write(self, places: dict[tuple[str, str], tuple[int, int]]) -> None:
        with self._db:
            self._db.executemany(
                "INSERT INTO cursor VALUES (?, ?, ?, ?) ON CONFLICT (source, type) "
                "DO UPDATE SET seq = max(seq, excluded.seq), at = excluded.at",
                [(*key, *place) for key, place in places.items()],
            )

    def _replace(self, error: Exception, since_ns: int) -> None:
        aside = statefile.put_aside(self.path)
        what = (
            "its places are lost, and what publishers and the controller's journal still hold comes again"
            if since_ns == 0
            else "its places were written anew"
        )
        log.error(
            "%s is damaged (%s): kept as %s, and a new one begun; %s",
            self.path,
            statefile.reason(error),
            aside.name,
            what,
        )
        self._db = self._open(since_ns)

    def _open(self, since_ns: int) -> sqlite3.Connection:
        new = statefile.make_private(self.path)
        db = sqlite3.connect(self.path, check_same_thread=False, timeout=2.0)
        try:
            with statefile.text_checked():
                self.since_ns, rows = self._read(db, since_ns, new)
        except BaseException:
            db.close()
            raise
        if not self._places:
            self._places = {(source, name): (seq, at) for source, name, seq, at in rows}
        return db

    def _read(
        self, db: sqlite3.Connection, since_ns: int, new: bool
    ) -> tuple[int, list[tuple[str, str, int, int]]]:
        """Since when, and every place, the latest last. What is damaged is left as it is."""
        if new:
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
            with db:
                db.execute("INSERT INTO about VALUES ('since_ns', ?)", (str(since_ns),))
        statefile.check(db, _COLUMNS, quick=False)
        found = db.execute("SELECT value FROM about WHERE key = 'since_ns'").fetchone()
        text = found[0] if found else ""
        if not text.isdecimal() or int(text) > time.time_ns() + DAY_NS:
            raise statefile.Damaged(f"since_ns is {text[:40]!r}, which is no time")
        rows = db.execute("SELECT source, type, seq, at FROM cursor ORDER BY at").fetchall()
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        statefile.write_nothing(db)
        return int(text), rows
