"""A deduplication profile by many nodes: a part is a task.

Arrives: a tree or a catalog, an engine; perhaps a folder for the parts.
Leaves: a report, or parts, as ranks make them.
Must not know: how data is chunked, how tasks reach nodes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from waystage.catalog.files import files_of
from waystage.catalog.listing import hold_lists_apart, listing_of
from waystage.catalog.parts import new_tag
from waystage.dedup.profile import TOLD, DedupOptions, hold_apart, is_made, make_part, part_path
from waystage.dedup.report import Report, merge
from waystage.nodes import Engine, Here, Mark, Task, marked, shared_folder
from waystage.nodes.shared import alone
from waystage.ranks import Rank
from waystage.task import Progress

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
    """The report of `source`, by the workers of `engine`. Raises as `parts_on_nodes`."""
    hold_lists_apart(source, directory)
    with shared_folder(directory) as (lists, mark):
        folder = lists / "parts"
        folder.mkdir(mode=0o700)
        paths, _, excluded, errors = _make(engine, source, folder, None, options, progress, lists, mark)
        report = merge(paths, progress)
    return replace(report, excluded=excluded, errors=errors[:TOLD])


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


def profile_part(here: Here, work: Work, part: int) -> tuple[int, list[tuple[bytes, str]]]:
    """In a worker: make a part; how many files were left out, and what could not be read. Raises DedupError."""
    options = replace(work.options, threads=here.threads(work.options.threads, work.options.thread_count()))
    path = part_path(Path(work.folder), part, work.parts)
    with alone(Path(work.lists) / f"part-{part}.lock", here.progress):
        listing = Path(work.listing)
        files = files_of(listing, options.exclude, progress=here.progress, part=(part, work.parts))
        # A name that no other attempt has: two of them may write at once where locks do not hold.
        attempt = path.with_name(f"{ATTEMPT}{new_tag()}-{part}")
        errors = make_part(files, Path(work.source), attempt, Rank(part, work.parts), options, here.progress)
        os.rename(attempt, path)
    return files.excluded, errors
