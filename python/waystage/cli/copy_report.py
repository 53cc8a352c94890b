"""What `waystage copy` says: statistics each second, a line for each entry, the result.

Arrives: copies, deletions and removals, running or ended.
Leaves: text, JSON lines, one JSON object.
Must not know: how anything is copied.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.copy_dry import KINDS, REMARKS, WORDS

SHOWN = 20
"""Problems and paths shown as text; --json gives all."""

LISTED = 10_000
"""Problems and paths that are listed at all; all are counted."""

STATISTICS_S = 1.0

PARTS = (
    ("files", "files"),
    ("symlinks", "symbolic links"),
    ("hard_links", "hard links"),
    ("specials", "devices and FIFOs"),
    ("directories", "directories"),
    ("mended", "files repaired"),
    ("verified", "read back"),
    ("same", "there already"),
    ("leftovers", "leftovers removed"),
    ("excluded", "left out"),
    ("deleted", "deleted"),
    ("removed", "removed at the source"),
)


class Ended(Protocol):
    """A copy or what followed it, as its counts and problems say."""

    @property
    def complete(self) -> bool: ...
    def progress(self) -> dict[str, int]: ...
    def problems(self) -> list[tuple[bytes, str, str]]: ...
    def planned(self) -> list[tuple[bytes, str, int]]: ...


@dataclass
class Together:
    """Several of them as one; `below` is put before the paths of each."""

    complete: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    listed: list[tuple[bytes, str, str]] = field(default_factory=list)
    would_copy: list[tuple[bytes, str, int]] = field(default_factory=list)
    would_delete: list[tuple[bytes, str, int]] = field(default_factory=list)

    def add(self, ended: Ended, below: bytes = b"", *, deleted: bool = False) -> None:
        """Add one; `deleted` where its planned entries would be deleted, and only its own counts count."""

        def named(path: bytes) -> bytes:
            return b"/".join(part for part in (below, path) if part)

        for name, count in ended.progress().items():
            if not deleted or name in ("deleted", "removed", "errors", "changed", "vanished"):
                self.counts[name] = self.counts.get(name, 0) + count
        problems = [(named(path), kind, text) for path, kind, text in ended.problems()]
        self.listed = [*self.listed, *problems][:LISTED]
        planned = [(named(path), letter, size) for path, letter, size in ended.planned()]
        if deleted:
            self.would_delete = [*self.would_delete, *planned][:LISTED]
        else:
            self.would_copy = [*self.would_copy, *planned][:LISTED]
        self.complete &= ended.complete

    def progress(self) -> dict[str, int]:
        return self.counts

    def problems(self) -> list[tuple[bytes, str, str]]:
        return self.listed

    def planned(self) -> list[tuple[bytes, str, int]]:
        return self.would_copy


class Statistics:
    """Writes a line each second, and one at the end."""

    def __init__(self, file: TextIO, began: float) -> None:
        self._file, self._began = file, began
        self._due, self._bytes, self._at = began + STATISTICS_S, 0, began

    def look(self, copying: Any, *, last: bool = False) -> None:
        """Write a line if a second has passed."""
        now = time.monotonic()
        if now < self._due and not last:
            return
        counts = copying.progress()
        moved = counts["bytes"]
        line: dict[str, Any] = {
            "time": round(time.time(), 3),
            "seconds": round(now - self._began, 3),
            "bytes_per_s": round((moved - self._bytes) / max(now - self._at, 1e-9)),
            "counts": counts,
        }
        if hasattr(copying, "connection"):
            numbers, limit = copying.connection()
            line["connection"] = {key: round(number, 3) for key, number in numbers.items()}
            line["limited_by"] = limit or None
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._bytes, self._at = moved, now
        # What was missed is not made up for.
        self._due += STATISTICS_S * max(1, math.ceil((now - self._due) / STATISTICS_S))


class ItemLog:
    """One line for each entry that was copied, deleted or removed: as text with --verbose, as JSON in --log-file."""

    def __init__(self, output: Output, path: str | None) -> None:
        self._output = output
        try:
            self._file = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise UserError(
                f"--log-file {path} cannot be written: {error.strerror}", ExitCode.BAD_INPUT
            ) from None

    @property
    def wanted(self) -> bool:
        return self._output.verbose or self._file is not None

    def take(self, task: Any) -> None:
        """Log what the task has done since the last call."""
        from waystage.display import display, named

        done = task.take_done() if self.wanted and hasattr(task, "take_done") else []
        for what, path, letter, size in done:
            self._output.detail(f"{what} {display(path)}{'/' if letter == 'd' else ''}")
            if self._file is not None:
                kind = "directory" if letter == "d" else KINDS.get(letter, letter)
                self.write({"what": what} | named(path) | {"kind": kind, "bytes": size})
        if done and self._file is not None:
            self._file.flush()

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, with the time before it, if there is a log file."""
        if self._file is not None:
            text = json.dumps({"time": round(time.time(), 3)} | line, ensure_ascii=True)
            self._file.write(text + "\n")

    def close(self, result: dict[str, Any]) -> None:
        """Log the problems and the result."""
        for problem in result["problems"]:
            self.write({"what": "problem"} | problem)
        self.write({"what": "result"} | {key: result[key] for key in ("complete", "seconds", "counts")})
        if self._file is not None:
            self._file.close()


def say(
    copying: Ended,
    source: str | list[str],
    destination: str,
    seconds: float,
    output: Output,
    more: dict[str, Any],
    words: str,
    listing: list[str],
    log: ItemLog | None = None,
) -> None:
    """Print the result."""
    from waystage.display import display, named

    counts = copying.progress()
    problems = copying.problems()
    value: dict[str, Any] = {
        "source": source,
        "destination": destination,
        "complete": copying.complete,
        "seconds": round(seconds, 3),
        "counts": counts,
        "problems": [named(path) | {"kind": kind, "text": text} for path, kind, text in problems],
    }
    value |= more
    if log is not None:
        log.close(value)
    done = [f"{counts[key]:,} {words}" for key, words in PARTS if counts.get(key)]
    dry = more["dry_run"]
    word = WORDS.get(dry, "copied")
    rate = f" ({size_text(counts['bytes'] / max(seconds, 1e-9))}/s)" if dry in ("disk", "network") else ""
    text = f"{word} {size_text(counts['bytes'])} in {seconds:.1f} s{rate}: {', '.join(done) or 'nothing was found'}"
    if counts["resumed"]:
        text += f"; resumed with {size_text(counts['resumed_bytes'])} of an interrupted copy"
    for kind in ("errors", "changed", "vanished", "lost", "skipped"):
        if counts[kind]:
            text += f"; {counts[kind]:,} {kind}"
    text += REMARKS.get(dry, "")
    if len(listing) > SHOWN and not output.verbose:
        listing = [*listing[:SHOWN], f"... and {len(listing) - SHOWN:,} more: --verbose or --json lists them"]
    output.result(value, "\n".join([*listing, text + words]))
    if not output.json:
        for path, kind, why in problems[:SHOWN]:
            output.note(f"{display(path) or '.'}: {kind}: {why}")
        if len(problems) > SHOWN:
            output.note(f"... and {len(problems) - SHOWN:,} more: --json lists them")


def size_text(size: float) -> str:
    """Bytes as text: 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""
