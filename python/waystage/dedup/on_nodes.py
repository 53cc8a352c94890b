"""A deduplication profile by many nodes: tasks read files into parts, others join slices of all parts.

Arrives: a tree or a catalog, an engine; perhaps a folder for the parts.
Leaves: a report, or parts, as ranks make them.
Must not know: how data is chunked, how tasks reach nodes.

A part is sorted by slices of its fingerprints. Chunks that are alike are in the same slice of all parts, so slices are
joined independently, and counts of different slices add up: no node needs to see all fingerprints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from waystage._native import DEDUP_SLICES
from waystage.catalog.files import TreeFiles, files_in, files_of
from waystage.catalog.listing import LISTING, hold_lists_apart, listing_of
from waystage.catalog.on_nodes import Following
from waystage.catalog.parts import new_tag
from waystage.catalog.ranges import Range, Split, Waiting, split, split_part
from waystage.catalog.store import Catalog, Part, is_catalog
from waystage.dedup.profile import (
    TOLD,
    DedupOptions,
    hold_apart,
    is_made,
    make_part,
    part_path,
    report_of,
)
from waystage.dedup.report import Report, merge, together
from waystage.nodes import Engine, Here, Mark, Task, marked, shared_folder
from waystage.nodes.shared import alone
from waystage.task import Progress

MERGED_BYTES = 22 << 20
"""Of all parts, for each task that joins slices: a million chunks."""

PARTS_A_THREAD = 4
"""As for ranks: an interrupted run repeats a quarter of a worker's part at most."""

ATTEMPT = ".attempt-"

NAME = re.compile(r"part-\d{5}-of-(\d{5})\.dedup")


def parts_on_nodes(
    engine: Engine,
    source: Path,
    folder: Path,
    parts: int | None,
    options: DedupOptions,
    progress: Progress,
    *,
    directory: Path,
) -> tuple[list[Path], int]:
    """Make all parts of `source` in `folder`, by the workers of `engine`; all of them, and how many existed already.

    `parts` None is as many as the folder's parts are of, else four for each concurrent task. Raises BuildError,
    CatalogError, DedupError, NodesError.
    """
    hold_apart(source, folder)
    hold_lists_apart(source, directory)
    folder.mkdir(parents=True, exist_ok=True)
    with shared_folder(directory) as (lists, mark):
        paths, kept, _, _ = _make(engine, source, folder, parts, options, progress, lists, mark)
    return paths, kept


def profile_on_nodes(
    engine: Engine, source: Path, options: DedupOptions, progress: Progress, *, directory: Path
) -> Report:
    """The report of `source`, by the workers of `engine`: files are read while the tree is walked, and slices of their
    fingerprints are joined by the workers as well. Raises as `parts_on_nodes`."""
    hold_lists_apart(source, directory)
    with shared_folder(directory) as (lists, mark):
        folder = lists / "parts"
        folder.mkdir(mode=0o700)
        given = is_catalog(source)
        rate = options.bytes_per_s and max(1, options.bytes_per_s // max(1, engine.threads()))
        root = Catalog(source).root if given else Path(os.path.abspath(source))
        work = Work(
            os.path.abspath(source),
            os.path.abspath(source) if given else str(lists / LISTING),
            str(folder),
            str(lists),
            0,
            replace(options, bytes_per_s=rate),
            str(root),
        )
        reading = _Reading(engine, work)
        following = Following(reading.found, reading.held, reading.finished)
        exclude, one = options.exclude, options.one_file_system
        listing = listing_of(
            engine,
            source,
            lists,
            progress,
            (mark,),
            exclude=exclude,
            one_file_system=one,
            following=following,
        )
        tasks = reading.after_listing(listing.path, progress if given else None)
        engine.run(tasks, reading.finished, progress, held=reading.held, marks=listing.marks)
        if reading.paths:
            report = merge_on_nodes(engine, reading.paths, progress, directory=lists, marks=listing.marks)
        else:
            report = report_of(files_in(listing.path, root, ()), source, options)
    excluded = listing.excluded + reading.excluded
    return replace(report, excluded=excluded, errors=[*listing.errors, *reading.errors][:TOLD])


class _Reading:
    """The tasks that read files, each into a separate part."""

    def __init__(self, engine: Engine, work: Work) -> None:
        self._engine, self._work = engine, work
        self._waiting = Waiting()
        self._tasks = self._linked = 0
        self.paths: list[Path] = []
        self.excluded = 0
        self.errors: list[tuple[bytes, str]] = []

    def found(self, folder: Path, part: Part) -> list[Task]:
        """Take what a part of the walk has found, while it goes on."""
        self._take(split_part(folder, part, self._engine.threads(), links_apart=True, large_apart=False))
        return []

    def after_listing(self, listing: Path, progress: Progress | None) -> list[Task]:
        """Take the entries of a catalog that was given; the tasks that read files with several names, each once."""
        threads = max(1, self._engine.threads())
        if progress is not None:
            report = partial(progress, "listing", 0.0)
            self._take(split(Catalog(listing), threads, links_apart=True, large_apart=False, report=report))
        shares = min(threads, self._linked)
        return [self._task(f"hard links {share} of {shares}", share, shares) for share in range(shares)]

    def held(self, is_wanted: bool) -> Task | None:
        """The next task, where enough files wait, or a worker waits for them."""
        ranges = self._waiting.take(self._engine.threads(), is_wanted=is_wanted)
        if not ranges:
            return None
        name = f"range {self._tasks}"
        return replace(self._task(name, ranges), weight=sum(of.cost for of in ranges))

    def finished(self, task: Task, made: Made) -> list[Task]:
        """Take what a task has made."""
        self.paths.append(Path(made.path))
        self.excluded += made.excluded
        self.errors = [*self.errors, *made.errors][:TOLD]
        return []

    def _task(self, name: str, *what: Any) -> Task:
        number = self._tasks
        self._tasks += 1
        function = profile_ranges if len(what) == 1 else profile_linked
        return Task(name, function, (self._work, number, *what))

    def _take(self, found: Split) -> None:
        self._waiting.add(found.ranges)
        self._linked += found.linked


def merge_on_nodes(
    engine: Engine, paths: list[Path], progress: Progress, *, directory: Path, marks: Sequence[Mark]
) -> Report:
    """Join parts by the workers of `engine`, each task some slices of all of them. Raises DedupPartError, NodesError."""
    size = sum(path.stat().st_size for path in paths)
    tasks = min(-(-size // MERGED_BYTES), DEDUP_SLICES)
    if tasks < 2:
        return merge(paths, progress)
    reports: list[Report] = []
    with shared_folder(directory) as (folder, mark):
        listed = folder / "list"
        listed.write_bytes(b"".join(os.fsencode(os.path.abspath(path)) + b"\0" for path in paths))
        bounds = [DEDUP_SLICES * number // tasks for number in range(tasks + 1)]
        joins = [
            Task(f"slices {first} to {end - 1}", merge_slices, (str(listed), (first, end)))
            for first, end in pairwise(bounds)
        ]

        def finished(task: Task, report: Report) -> None:
            reports.append(report)

        engine.run(joins, finished, progress, marks=(*marks, mark), total=float(tasks))
    return together(reports)


def _make(
    engine: Engine,
    source: Path,
    folder: Path,
    parts: int | None,
    options: DedupOptions,
    progress: Progress,
    lists: Path,
    mark: Mark,
) -> tuple[list[Path], int, int, list[tuple[bytes, str]]]:
    """The parts, how many existed, entries left out, what could not be read."""
    errors: list[tuple[bytes, str]] = []
    with marked(folder) as there:
        marks = (mark, there)
        exclude, one = options.exclude, options.one_file_system
        listing = listing_of(engine, source, lists, progress, marks, exclude=exclude, one_file_system=one)
        threads = max(1, engine.threads())
        count = parts or _parts_there(folder) or PARTS_A_THREAD * threads
        paths = [part_path(folder, part, count) for part in range(count)]
        missing = [part for part in range(count) if not is_made(source, paths[part], options)]
        rate = options.bytes_per_s and max(1, options.bytes_per_s // threads)
        work = Work(
            os.path.abspath(source),
            str(listing.path),
            os.path.abspath(folder),
            str(lists),
            count,
            replace(options, bytes_per_s=rate),
        )

        def finished(task: Task, found: tuple[int, list[tuple[bytes, str]]]) -> None:
            errors.extend(found[1])
            excluded.append(found[0])

        excluded: list[int] = []
        tasks = [Task(f"part {part} of {count}", profile_part, (work, part)) for part in missing]
        engine.run(tasks, finished, progress, marks=listing.marks, total=len(tasks))
        for left in folder.glob(f"{ATTEMPT}*"):
            left.unlink(missing_ok=True)
    # Every task reads the same catalog, and leaves out the same of it.
    left_out = listing.excluded + max(excluded, default=0)
    return paths, count - len(missing), left_out, [*listing.errors, *errors]


def _parts_there(folder: Path) -> int | None:
    """The number of parts that existing ones are of, where all say the same."""
    found = {int(name[1]) for path in folder.iterdir() if (name := NAME.fullmatch(path.name))}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class Work:
    """What all parts have in common: paths that every node has."""

    source: str
    listing: str
    folder: str
    lists: str
    parts: int
    options: DedupOptions
    root: str = ""


@dataclass(frozen=True)
class Made:
    """A part; how many files were left out, and what could not be read."""

    path: str
    excluded: int
    errors: list[tuple[bytes, str]]


def profile_ranges(here: Here, work: Work, number: int, ranges: tuple[Range, ...]) -> Made:
    """In a worker: make a part of the files in ranges. Raises CatalogError, DedupError."""
    return _made(
        here, work, number, files_in(Path(work.listing), Path(work.root), ranges, work.options.exclude)
    )


def profile_linked(here: Here, work: Work, number: int, share: int, shares: int) -> Made:
    """In a worker: make a part of a share of the files with several names. Raises CatalogError, DedupError."""
    part, options = (share, shares), work.options
    files = files_of(Path(work.listing), options.exclude, progress=here.progress, part=part, linked=True)
    # Other tasks have counted what was left out.
    return _made(here, work, number, replace(files, excluded=0))


def _made(here: Here, work: Work, number: int, files: TreeFiles) -> Made:
    options = replace(work.options, threads=here.threads(work.options.threads, work.options.thread_count()))
    # A name that no other attempt has.
    path = Path(work.folder) / f"part-{number}-{new_tag()}{new_tag()}"
    errors = make_part(files, Path(work.source), path, number, 0, options, here.progress)
    return Made(str(path), files.excluded, errors)


def merge_slices(here: Here, listed: str, slices: tuple[int, int]) -> Report:
    """In a worker: join some slices of all parts in a list. Raises DedupPartError."""
    names = Path(listed).read_bytes().split(b"\0")[:-1]
    return merge([Path(os.fsdecode(name)) for name in names], here.progress, slices)


def profile_part(here: Here, work: Work, part: int) -> tuple[int, list[tuple[bytes, str]]]:
    """In a worker: make a part; how many files were left out, and what could not be read. Raises DedupError."""
    options = replace(work.options, threads=here.threads(work.options.threads, work.options.thread_count()))
    path = part_path(Path(work.folder), part, work.parts)
    with alone(Path(work.lists) / f"part-{part}.lock", here.progress):
        listing = Path(work.listing)
        files = files_of(listing, options.exclude, progress=here.progress, part=(part, work.parts))
        # A name that no other attempt has: two of them may write at once where locks do not hold.
        attempt = path.with_name(f"{ATTEMPT}{new_tag()}-{part}")
        errors = make_part(files, Path(work.source), attempt, part, work.parts, options, here.progress)
        os.rename(attempt, path)
    return files.excluded, errors
