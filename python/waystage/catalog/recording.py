"""One walk, recorded in parts.

Arrives: a tree, what of it is known, a folder and its journal.
Leaves: parts, and a journal that names each part only when it is whole.
Must not know: where the finished catalog goes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from waystage._native import WalkBatch
from waystage.catalog.errors import BuildError
from waystage.catalog.kept import Known
from waystage.catalog.options import JOURNAL, UNFINISHED, BuildOptions, own_patterns
from waystage.catalog.parts import PartWriter, new_tag
from waystage.catalog.schema import DIRECTORIES, ENTRIES, directories_table, entries_table
from waystage.catalog.store import Manifest, Part
from waystage.catalog.walking import batches, start_walk
from waystage.native_options.walks import WalkOptions
from waystage.task import Progress

PART_ROWS = 4_000_000
PART_SECONDS = 60.0
"""A part is closed after this number of entries or seconds: a killed process loses at most that."""

WAIT_S = 0.2


@dataclass
class Recorded:
    """The results of a walk besides its parts."""

    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, str]] = field(default_factory=list)
    unchanged: list[pa.Array] = field(default_factory=list)
    """Paths of directories that were not read, because they had not changed."""


def record(
    folder: Path,
    manifest: Manifest,
    known: Known | None,
    options: BuildOptions,
    progress: Progress | None = None,
) -> Recorded:
    """Walk and add parts to `manifest`. An interrupt closes the current part, so that its work is not lost."""
    target = folder.with_name(folder.name.removesuffix(UNFINISHED))
    left_out = (*manifest.exclude, *own_patterns(Path(manifest.root), target))
    walk = start_walk(
        Path(manifest.root),
        WalkOptions(
            threads=options.thread_count(),
            batch_rows=options.batch_rows,
            exclude=[os.fsencode(pattern) for pattern in left_out],
            one_file_system=manifest.one_file_system,
            known=known,
            layouts=manifest.layouts,
        ),
    )
    recorder = Recorder(folder, manifest)

    try:
        for batch in batches(walk, progress, _how_far):
            recorder.add(batch)
        recorder.close_part()
    except KeyboardInterrupt:
        walk.cancel()
        recorder.close_part()
        raise
    except OSError as error:
        recorder.abandon()
        raise BuildError(f"{folder} cannot be written: {error.strerror or error}") from None
    finally:
        walk.cancel()
    recorder.done.counts = walk.progress()
    manifest.targets = sorted({*manifest.targets, *walk.targets()})
    return recorder.done


class Recorder:
    """Takes batches in any order and writes them as parts of a manifest; with `journal`, each complete part is
    recorded there. `first` is the number of the first part, where other processes give others."""

    def __init__(
        self, folder: Path, manifest: Manifest, *, journal: bool = True, first: int | None = None
    ) -> None:
        self._journal = journal
        self.done = Recorded()
        self._folder = folder
        self._manifest = manifest
        self._writers: tuple[PartWriter, PartWriter] | None = None
        following = 1 + max((part.number for part in manifest.parts), default=-1)
        self._next = following if first is None else first
        self._opened = 0.0
        self._tag = ""

    def add(self, batch: WalkBatch) -> pa.Table:
        """Write a batch; the table of its entries. A part that is large or old enough is closed and named in the
        journal."""
        entries, directories, errors = batch.take()
        self.done.errors += [(os.fsdecode(path), text) for path, text in errors]
        found = directories_table(directories, entries)
        unchanged = directories["state"] == 1
        if unchanged.any():
            paths = found["path"].combine_chunks()
            self.done.unchanged.append(paths.filter(pa.array(unchanged)))
        table = entries_table(entries, found["path"].combine_chunks())
        entries_writer, directories_writer = self._open()
        entries_writer.write(table)
        directories_writer.write(found)
        self.done.rows += table.num_rows
        if entries_writer.rows >= PART_ROWS or time.monotonic() - self._opened >= PART_SECONDS:
            self.close_part()
        return table

    def close_part(self) -> None:
        """Rename the current part into place, and record it in the journal."""
        if self._writers is None:
            return
        rows, summary = self._writers[0].rows, self._writers[0].summary
        for writer in self._writers:
            writer.close()
        self._writers = None
        self._manifest.parts.append(Part(self._next, rows, summary, tag=self._tag))
        self._next += 1
        if self._journal:
            self._manifest.save(self._folder / JOURNAL)

    def abandon(self) -> None:
        """Discard the current part."""
        for writer in self._writers or ():
            writer.abandon()
        self._writers = None

    def _open(self) -> tuple[PartWriter, PartWriter]:
        if self._writers is None:
            self._tag = new_tag()
            part = Part(self._next, 0, tag=self._tag)
            self._writers = (
                PartWriter(self._folder / part.entries, ENTRIES),
                PartWriter(self._folder / part.directories, DIRECTORIES),
            )
            self._opened = time.monotonic()
        return self._writers


def _how_far(counts: dict[str, int]) -> tuple[str, float]:
    """The size of the tree is unknown: the share is of the directories found so far."""
    read = counts["directories"] + counts["unchanged"]
    return f"{counts['entries']:,} entries", read / (read + counts["pending"] + 1)
