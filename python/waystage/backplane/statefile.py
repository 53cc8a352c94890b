"""SQLite files of state: private, checked when opened, renamed if damaged.

Arrives: a path, the expected tables.
Leaves: an open database of mode 0600; a damaged file under another name, with the reason.
Must not know: the meaning of the tables, the source for a rebuild.

SQLite verifies checksums only of its log and, in the file, only the structure of pages: a changed byte inside a value
is not found. Therefore the types of all values are checked too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_SIDES = ("", "-wal", "-shm", "-journal")
"""SQLite's own files beside a database; it gives them the mode of the database."""

Columns = Mapping[str, Mapping[str, str]]
"""Table -> column -> the types its values may have: `text`, `integer`, `blob`, of several with `|`."""

_REFUSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
    }
)
"""Primary result codes (sqlite.org/rescode.html) of a disk or a user that refuses; the file may be whole."""

_PAGES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Damaged(sqlite3.DatabaseError):
    """A file that is no database of ours, or not whole; the message says what is wrong with it."""


def private_folder(path: Path) -> None:
    """Make `path` where it is missing, and what of it is missing above, for its owner alone. Raises OSError."""
    if path.is_dir():
        return
    private_folder(path.parent)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(FOLDER_MODE)


def changeable(path: Path, trusted: Iterable[int]) -> str | None:
    """Why users other than those numbers could change what is at this path; None where they cannot.

    A user who may write to a directory above it could put another in its place.
    """
    trusted = frozenset(trusted)
    each = path.resolve()
    for place in (each, *each.parents):
        try:
            status = place.stat()
        except OSError as error:
            return f"{place}: {error.strerror}"
        if status.st_uid not in trusted:
            return f"{place} belongs to another user (uid {status.st_uid}): give it to root"
        loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if loose and not sticky:
            return f"{place} can be written by others: chmod go-w {place}"
    return None


def make_private(path: Path) -> bool:
    """Make the file where it is missing, of mode 0600 with any umask; take rights of others from an older one.

    Whether it was made: only then should tables be missing. Raises OSError, and Damaged where it, or one of SQLite's
    files beside it, is no regular file or has no byte.
    """
    for suffix in _SIDES:
        part = Path(f"{path}{suffix}")
        try:
            found = part.stat()
        except FileNotFoundError:
            if part.is_symlink():
                raise Damaged(f"{part.name} is a link to a file that is missing") from None
            continue
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{part.name} is no regular file")
        if not suffix and found.st_size == 0:
            raise Damaged("it is empty")
        if stat.S_IMODE(found.st_mode) & ~FILE_MODE:
            part.chmod(stat.S_IMODE(found.st_mode) & FILE_MODE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        return False
    os.fchmod(descriptor, FILE_MODE)
    os.close(descriptor)
    return True


def check(db: sqlite3.Connection, columns: Columns, *, quick: bool) -> None:
    """Raises Damaged where pages, tables or values are not as they should be.

    `quick` leaves out whether indexes hold what tables hold, which takes time in large files.
    """
    told = db.execute(f"PRAGMA {'quick_check' if quick else 'integrity_check'}(1)").fetchone()[0]
    if told != "ok":
        raise Damaged(f"its pages do not fit together: {' '.join(str(told).split())[:120]}")
    for table, wanted in columns.items():
        found = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        if found != set(wanted):
            missing = sorted(set(wanted) - found) or sorted(found - set(wanted))
            raise Damaged(f"table {table} is not as it should be ({', '.join(missing)})")
        wrong = " OR ".join(f"typeof({c}) NOT IN ({_quoted(types)})" for c, types in wanted.items())
        row = db.execute(f"SELECT count(*) FROM {table} WHERE {wrong}").fetchone()
        if row[0]:
            raise Damaged(f"{row[0]} rows of table {table} hold values of a wrong type")


def write_nothing(db: sqlite3.Connection) -> None:
    """Raises sqlite3.Error where the file cannot be written: a damaged header can ask for that."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {version}; COMMIT;")


@contextlib.contextmanager
def text_checked() -> Iterator[None]:
    """Text that is no UTF-8, in a value or in SQLite's own message on a damaged schema, is damage too."""
    try:
        yield
    except UnicodeDecodeError:
        raise Damaged("text in it is no UTF-8") from None


def _quoted(types: str) -> str:
    return ", ".join(f"'{name}'" for name in types.split("|"))


def is_damage(error: sqlite3.Error, path: Path) -> bool:
    """Whether `error` came of the file's contents, found when it was opened, and not of a disk or user that refuses."""
    if isinstance(error, Damaged):
        return True
    code = _primary(error)
    if code == sqlite3.SQLITE_READONLY:  # a damaged header can ask for that
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return code is not None and code not in _REFUSING


def is_damaged_page(error: sqlite3.Error) -> bool:
    """Whether `error`, raised while the file is in use, says that its pages are damaged, or that it was removed."""
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_READONLY_DBMOVED):
        return True
    return isinstance(error, Damaged) or _primary(error) in _PAGES or str(error).startswith("no such ")


def _primary(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def put_aside(path: Path) -> Path:
    """Keep `path` and SQLite's files beside it under a name with the time, for their owner alone. Raises OSError."""
    mark = time.strftime("damaged-%Y%m%dT%H%M%SZ", time.gmtime())
    aside = Path(f"{path}.{mark}")
    while any(os.path.lexists(f"{aside}{suffix}") for suffix in _SIDES):
        aside = Path(f"{path}.{mark}-{secrets.token_hex(4)}")
    for suffix in _SIDES:
        if os.path.lexists(f"{path}{suffix}"):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
            _take_rights(Path(f"{aside}{suffix}"))
    return aside


def _take_rights(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISREG(found.st_mode):
        path.chmod(stat.S_IMODE(found.st_mode) & FILE_MODE)


def reason(error: Exception) -> str:
    """What is wrong, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
