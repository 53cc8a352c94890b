"""Reading files for a deduplication profile: into a report, or into parts that a later call or another node joins.

Arrives: a tree or a catalog, and how to read it.
Leaves: a report; or parts on disk, each complete or absent.
Must not know: how data is chunked; how reports are shown.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from waystage._native import DedupPartError, DedupProfile, dedup_question
from waystage.catalog.apart import meeting
from waystage.catalog.files import TreeFiles, columns_for_reading, files_of
from waystage.dedup.report import Report, from_native
from waystage.display import display
from waystage.flows import FlowDescription, reported, storage
from waystage.native_options.datasets import DedupProfileOptions
from waystage.ranks import Rank
from waystage.task import Progress, follow, no_progress

TOLD = 1000
"""Unreadable files of which the reason is kept; all are counted."""


@dataclass(frozen=True)
class DedupOptions:
    """How to read. `method` is `fast`, `fsc` or `fixed:BYTES`; `bytes_per_s` 0 is no limit."""

    method: str = "fast"
    exclude: tuple[str, ...] = ()
    one_file_system: bool = False
    threads: int | None = None
    bytes_per_s: int = 0

    def thread_count(self) -> int:
        """Two for each core: one chunks while another waits for its disk."""
        return self.threads or 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Dry:
    """What a run would read: each file once, also with several hard links."""

    files: int
    bytes: int
    allocated_bytes: int
    excluded: int
    parts: int
    finished_parts: int


def profile(source: Path, options: DedupOptions, progress: Progress = no_progress) -> Report:
    """Read all of `source` and report. Raises BuildError, CatalogError or DedupError."""
    files = files_of(source, options.exclude, one_file_system=options.one_file_system, progress=progress)
    return report_of(files, source, options, progress)


def report_of(
    files: TreeFiles, source: Path, options: DedupOptions, progress: Progress = no_progress
) -> Report:
    """The report of these files. Raises DedupError."""
    return _run(files, source, options, progress)


def make_parts(
    source: Path,
    folder: Path,
    parts: int,
    rank: Rank,
    options: DedupOptions,
    progress: Progress = no_progress,
) -> tuple[list[Path], int]:
    """Make this rank's parts in `folder`; returns all of them, and how many existed already.

    An existing part that answers the same question is kept. Raises DedupPartError where an existing part answers
    another.
    """
    if parts < rank.of:
        raise DedupPartError(f"{parts} parts for {rank.of} ranks leave some without work: ask for more parts")
    hold_apart(source, folder)
    folder.mkdir(parents=True, exist_ok=True)
    label = label_of(source, options)
    mine = [(part, part_path(folder, part, parts)) for part in range(parts) if rank.has(part)]
    missing = [(part, path) for part, path in mine if not _is_made(path, label, options.method)]
    if missing:
        files = files_of(source, options.exclude, one_file_system=options.one_file_system, progress=progress)
        of_file = files.share(parts)
        for done, (part, path) in enumerate(missing):

            def scaled(what: str, share: float, done: int = done) -> None:
                progress(f"part {done + 1} of {len(missing)}, {what}", (done + share) / len(missing))

            chosen = files.only(of_file == part)
            _run(chosen, source, options, scaled, path, part, parts)
    return [path for _, path in mine], len(mine) - len(missing)


def make_part(
    files: TreeFiles,
    source: Path,
    path: Path,
    number: int,
    parts: int,
    options: DedupOptions,
    progress: Progress = no_progress,
) -> list[tuple[bytes, str]]:
    """Make one part, of files that are all its own; what could not be read. `parts` is 0 where only the caller knows how many
    there will be. Raises DedupError."""
    return _run(files, source, options, progress, path, number, parts).errors


def is_made(source: Path, path: Path, options: DedupOptions) -> bool:
    """Whether a part exists. Raises DedupPartError where it answers another question."""
    return _is_made(path, label_of(source, options), options.method)


def hold_apart(source: Path, folder: Path) -> None:
    """Raise DedupPartError where parts in `folder` would be among the files of `source`."""
    how = meeting(source, folder)
    if how in ("is", "is inside"):
        raise DedupPartError(
            f"{display(str(folder))} {how} {display(str(source))}, so the parts would be among the files that are read:"
            " name a folder outside of it"
        )


def dry_run(source: Path, folder: Path | None, parts: int, rank: Rank, options: DedupOptions) -> Dry:
    """What would be read, without opening any file."""
    files = files_of(source, options.exclude, one_file_system=options.one_file_system)
    finished = 0
    if folder is not None:
        label = label_of(source, options)
        mine = [part for part in range(parts) if rank.has(part)]
        made = [part for part in mine if _is_made(part_path(folder, part, parts), label, options.method)]
        finished = len(made)
        of_file = files.share(parts)
        mask = of_file != of_file  # none
        for part in set(mine) - set(made):
            mask |= of_file == part
        files = files.only(mask)
    table = files.once().table
    return Dry(
        files=table.num_rows,
        bytes=int(table["size"].to_numpy().sum()),
        allocated_bytes=512 * int(table["blocks"].to_numpy().sum()),
        excluded=files.excluded,
        parts=parts if folder is not None else 0,
        finished_parts=finished,
    )


def part_path(folder: Path, part: int, parts: int) -> Path:
    """The path of a part."""
    return folder / f"part-{part:05d}-of-{parts:05d}.dedup"


def label_of(source: Path, options: DedupOptions) -> str:
    """The label of a part: parts with different labels are not joined."""
    asked = {
        "source": display(os.path.abspath(source)),
        "exclude": sorted(options.exclude),
        "one_file_system": options.one_file_system,
    }
    return json.dumps(asked, sort_keys=True)


def _is_made(path: Path, label: str, method: str) -> bool:
    if not path.exists():
        return False
    question = dedup_question(path)
    if (question["label"], question["method"]) != (label, method):
        raise DedupPartError(
            f"{path} is of another tree, method or patterns: choose another folder, or remove what is in this one"
        )
    return True


def _run(
    files: TreeFiles,
    source: Path,
    options: DedupOptions,
    progress: Progress,
    part: Path | None = None,
    number: int = 0,
    parts: int = 1,
) -> Report:
    table = files.table
    total = int(files.once().table["size"].to_numpy().sum())
    native = DedupProfileOptions(
        method=options.method,
        threads=options.thread_count(),
        bytes_per_s=options.bytes_per_s,
        part=part,
        parts=parts,
        number=number,
        label=label_of(source, options),
    )

    def show(counts: dict[str, int]) -> None:
        read, done, found = counts["bytes"], counts["files"], counts["found"]
        share = read / total if total else done / max(found, 1)
        progress(f"{done:,} of {found:,} files, {read / 1e9:,.1f} GB", min(share, 1.0))

    running = DedupProfile(files.root, columns_for_reading(table), native)
    flow = FlowDescription(
        "io",
        "dedup",
        source=storage(files.root, files.target_names()),
        bytes=total,
        counts=lambda counts: (counts["bytes"], total),
    )
    with reported(running, flow):
        follow(running, show)
    report, errors = running.finish()
    return from_native(report, [*files.errors, *errors][:TOLD], {"method": options.method}, files.excluded)
