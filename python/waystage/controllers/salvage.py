"""Recovers the readable part of a damaged journal into its replacement.

Arrives: the damaged file, the new database with its tables.
Leaves: the readable events in the new database, and their number.
Must not know: policies, publishers.

Events are read in order up to the first unreadable one. The cursors of publishers follow from these events, not from
the damaged file: publishers resend all later events, and duplicates are recognized by their ids.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from waystage.events import EventError, decode


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """`whole`: the last event could be read. `snapshot`: whether the state before the events could."""

    events: int = 0
    whole: bool = False
    snapshot: bool = False


def salvage(old: Path, new: sqlite3.Connection) -> Salvaged:
    """Copy what `old` still tells into `new`. Raises sqlite3.Error where `new` cannot be written, and OSError."""
    with (
        tempfile.TemporaryDirectory(prefix="salvage-", dir=old.parent) as folder,
        contextlib.ExitStack() as stack,
    ):
        # Of a copy, since reading a log merges it into the file: what was put aside stays as it was found.
        copy = Path(folder) / "copy.db"
        for suffix in ("", "-wal"):
            part = Path(f"{old}{suffix}")
            if part.is_file():
                shutil.copyfile(part, f"{copy}{suffix}")
        _repair_header(copy)
        try:
            source = stack.enter_context(contextlib.closing(sqlite3.connect(copy)))
        except sqlite3.Error:
            return Salvaged()
        rows = _Rows(source)
        new.execute("BEGIN IMMEDIATE")
        try:
            found = _copy(rows, new)
            new.execute("COMMIT")
        except BaseException:
            if new.in_transaction:
                new.execute("ROLLBACK")
            raise
    return found


def _repair_header(copy: Path) -> None:
    """Give the file the header that a journal has (sqlite.org/fileformat.html, section 1.3), and its true length."""
    with contextlib.suppress(OSError), open(copy, "r+b") as file:
        head = bytearray(file.read(100))
        if len(head) < 100:
            return
        in_use = 2 if copy.with_name(f"{copy.name}-wal").exists() else 1
        # 4096 bytes a page, nothing reserved, the fractions of a page that the format prescribes.
        head[0:24] = b"SQLite format 3\0" + struct.pack(">HBBBBBB", 4096, in_use, in_use, 0, 64, 32, 32)
        head[44:48] = struct.pack(">I", 4)
        head[56:60] = struct.pack(">I", 1)
        head[92:96] = bytes(4)  # unlike the change counter: then the length is the file's own
        file.seek(0)
        file.write(head)


def _copy(rows: _Rows, new: sqlite3.Connection) -> Salvaged:
    count = last = 0
    whole = True
    for n, source, name, seq, previous, time_ns, data in rows.read("SELECT * FROM event ORDER BY n", 7):
        if (
            not (_numbers(n, seq, time_ns) and isinstance(data, bytes) and _is(data, source, seq))
            or n <= last
        ):
            whole = False
            break
        new.execute(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", (n, source, name, seq, previous, time_ns, data)
        )
        count, last = count + 1, n
    whole = whole and rows.whole
    new.execute(
        "INSERT INTO cursor (source, type, seq, at) SELECT source, type, max(seq), max(time_ns) FROM event "
        "WHERE seq > 0 GROUP BY source, type"
    )
    snapshot = 0
    for n, state in rows.read("SELECT n, state FROM snapshot ORDER BY n DESC LIMIT 1", 2):
        if _numbers(n) and isinstance(state, bytes) and _is_json(state):
            new.execute("INSERT INTO snapshot VALUES (?, ?)", (n, state))
            snapshot = n
    for n, text in rows.read("SELECT n, id FROM seen ORDER BY n", 2):
        if _numbers(n) and isinstance(text, str) and n <= max(last, snapshot):
            new.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (n, text))
    for n, actions in rows.read("SELECT n, actions FROM decision", 2):
        if _numbers(n) and n <= last and isinstance(actions, bytes) and _is_json(actions):
            new.execute("INSERT OR IGNORE INTO decision VALUES (?, ?)", (n, actions))
    for (value,) in rows.read("SELECT value FROM about WHERE key = 'processed'", 1):
        if _numbers(value):
            new.execute("INSERT OR REPLACE INTO about VALUES ('processed', ?)", (min(value, last),))
    top = max(last, snapshot)
    if top:
        new.execute("DELETE FROM sqlite_sequence WHERE name = 'event'")
        new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('event', ?)", (top,))
    return Salvaged(events=count, whole=whole, snapshot=snapshot > 0)


class _Rows:
    """Rows of a damaged database up to the first that cannot be read; `whole` where the last query gave all."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.whole = True

    def read(self, query: str, width: int) -> Iterator[tuple[Any, ...]]:
        self.whole = True
        try:
            for row in self._db.execute(query):
                if len(row) == width:
                    yield row
                else:
                    self.whole = False
        except (sqlite3.Error, UnicodeDecodeError):
            self.whole = False


def _numbers(*values: object) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


def _is(data: bytes, source: object, seq: int) -> bool:
    try:
        item = decode(data)
    except EventError:
        return False
    return item.source == source and item.seq == seq


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True
