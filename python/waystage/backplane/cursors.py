"""Where a named subscriber keeps how far it has come.

Arrives: source, type and number of each event that has been dealt with.
Leaves: the same after a restart.
Must not know: Zenoh, what an event says.

SQLite with a write-ahead log and `synchronous=NORMAL`: survives `kill -9` of the process; after a power
failure the last events may be delivered again, which is why each carries its id.
"""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Protocol

from waystage.backplane.config import BackplaneError

SOURCES_KEPT = 100_000
"""Sources remembered; a site's short-lived publishers add one each, so the oldest must go."""


class CursorStore(Protocol):
    """What a durable subscription needs of whoever keeps its place.

    `asks_journal`: whether events of publishers that are gone are to be had elsewhere, from a controller's journal.
    """

    since_ns: int
    asks_journal: bool

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
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._db = self._open()
        except (OSError, sqlite3.Error) as error:
            raise BackplaneError(f"cannot keep the place of {name!r} in {self.path}: {error}") from None
        row = self._db.execute("SELECT value FROM about WHERE key = 'since_ns'").fetchone()
        self.since_ns = int(row[0])

    def load(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for source, type_name, seq in self._db.execute("SELECT source, type, seq FROM cursor"):
            found.setdefault(source, {})[type_name] = seq
        return found

    def save(self, done: list[tuple[str, str, int]]) -> None:
        now = time.time_ns()
        with self._db:
            self._db.executemany(
                "INSERT INTO cursor VALUES (?, ?, ?, ?) ON CONFLICT (source, type) "
                "DO UPDATE SET seq = max(seq, excluded.seq), at = excluded.at",
                [(*row, now) for row in done],
            )

    def close(self) -> None:
        with self._db:
            self._db.execute(
                "DELETE FROM cursor WHERE source NOT IN (SELECT source FROM cursor "
                "GROUP BY source ORDER BY max(at) DESC LIMIT ?)",
                (SOURCES_KEPT,),
            )
        self._db.close()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False, timeout=2.0)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        with db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS cursor (source TEXT, type TEXT, seq INTEGER, at INTEGER, "
                "PRIMARY KEY (source, type)) WITHOUT ROWID"
            )
            db.execute("CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT)")
            db.execute("INSERT OR IGNORE INTO about VALUES ('since_ns', ?)", (str(time.time_ns()),))
        return db
