"""A copy by many nodes: ranges of a catalog as tasks, then hard links and attributes of directories in a last one.

Arrives: a tree, or its catalog; perhaps a list of names; a destination; an engine.
Leaves: files complete or absent, as each task's copy leaves them; counts and problems of all tasks together.
Must not know: how bytes are moved, how tasks reach nodes.

Each task has its own journal at the destination, by its key. A task that is run again resumes from it, and one that
runs twice at once waits for its other self. Where the tree is walked, files are copied as soon as their part of the walk is
there.
"""

from __future__ import annotations

import functools
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage._native import COPY_LIST_BYTES, FileFill, NameList
from waystage.catalog import BuildOptions, Catalog
from waystage.catalog.apart import same_entry
from waystage.catalog.errors import CatalogError
from waystage.catalog.listing import hold_lists_apart
from waystage.catalog.on_nodes import Following, build_on_nodes
from waystage.catalog.ranges import Range, Split, Waiting, opened, paths_apart, paths_in, split, split_part
from waystage.catalog.store import Part
from waystage.catalog.targets import Objects
from waystage.copying.shares import LAST, clear_shares, key_of_file, key_of_range, make_destination, start
from waystage.display import display
from waystage.flows import FlowDescription, reported, storage
from waystage.native_options.copies import FillOptions
from waystage.nodes import Engine, Here, NodesError, Task, marked, shared_folder
from waystage.nodes.shared import needed
from waystage.task import Progress, follow

if TYPE_CHECKING:
    from waystage._native import _Divided as Divided

LISTED = 10_000
"""Problems that are listed, as one copy lists them; all are counted."""

DIVIDED_BYTES = 1 << 30
"""A file from this size on is divided among nodes."""

FILL_EXTENTS = 8
"""Extents of 32 MiB that one task writes, at least."""

USUAL_FILLERS = 4
"""Threads that write extents of one file at a node: most file systems let few write to a file at a time."""

CHECKED_BYTES = 1 << 20
"""Of the list of names that one task looks for."""


@dataclass(frozen=True)
class Result:
    """What one task has copied."""

    counts: dict[str, int]
    problems: list[tuple[bytes, str, str]] = field(default_factory=list)
    planned: list[tuple[bytes, str, int]] = field(default_factory=list)
    complete: bool = True


@dataclass(frozen=True)
class Begun:
    """A large file whose extents any node may write."""

    file: Divided


@dataclass
class Copied:
    """What all tasks together have copied: the counts and problems of `waystage._native.TreeCopy`."""

    counts: dict[str, int] = field(default_factory=dict)
    listed: list[tuple[bytes, str, str]] = field(default_factory=list)
    complete: bool = True
    would_copy: list[tuple[bytes, str, int]] = field(default_factory=list)

    def add(self, found: Result) -> None:
        """That of one task."""
        for name, count in found.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.listed = [*self.listed, *found.problems][:LISTED]
        self.would_copy = sorted([*self.would_copy, *found.planned])[:LISTED]
        self.complete &= found.complete

    def progress(self) -> dict[str, int]:
        return self.counts

    def problems(self) -> list[tuple[bytes, str, str]]:
        return self.listed

    def planned(self) -> list[tuple[bytes, str, int]]:
        """What a dry run would make, the first ten thousand paths."""
        return self.would_copy


@dataclass(frozen=True)
class Ends:
    """What every task of a copy has in common. `options` are those of TreeCopyOptions; `rate` is bytes/s for all."""

    source: str
    destination: str
    catalog: str
    workers: int | None
    links_apart: bool
    rate_bytes_per_s: int | None
    job_id: str | None
    options: dict[str, Any]
    names: str | None = None
    """A file with the names that are wanted, each ended by NUL."""
    targets: tuple[str, ...] = ()
    """Storage targets of the source, where its catalog names them."""
    roots: tuple[str, str] | None = None
    """Where the source is one file: its directory, and the one that the copy comes into."""

    @property
    def dry_run(self) -> bool:
        return bool(self.options.get("dry_run"))


def copy_on_nodes(
    engine: Engine,
    source: Path,
    destination: str,
    options: dict[str, Any],
    progress: Progress,
    *,
    directory: Path,
    catalog: Path | None = None,
    exclude: tuple[str, ...] = (),
    names: NameList | None = None,
    workers: int | None = None,
    rate_bytes_per_s: int | None = None,
    job_id: str | None = None,
) -> Copied:
    """Copy the tree `source` into `destination` by the workers of `engine`.

    `options` are those of `waystage.native_options.copies.TreeCopyOptions`, `dry_run` among them; `directory` takes lists
    that all nodes read; `catalog` of `source` saves its walk, and entries that are not in it are not copied; with `names`
    only these are copied, and directories of them with their contents; `job_id` is of the job that the data is for.
    Raises CopyError, CatalogError, BuildError and NodesError.
    """
    root = Path(os.path.realpath(source))
    dry_run = bool(options.get("dry_run"))
    hold_lists_apart(root, directory)
    make_destination(root, destination, dry_run=dry_run)
    with ExitStack() as held:
        folder, listing_mark = held.enter_context(shared_folder(directory))
        marks = [needed(root), listing_mark]
        # Its end is before the last task, which gives the root its time.
        marking = ExitStack()
        held.callback(marking.close)
        there = [] if dry_run else [marking.enter_context(marked(Path(destination)))]
        threads = max(1, engine.threads())
        ends = Ends(
            str(root),
            os.path.abspath(destination),
            os.path.abspath(catalog or folder / "listing"),
            workers,
            bool(options.get("hard_links", True)),
            rate_bytes_per_s and max(1, rate_bytes_per_s // threads),
            job_id,
            options,
            None if names is None else _written(folder / "names", names),
            () if catalog is None else tuple(name for _, name in Catalog(catalog).manifest.targets),
        )
        whole = _Whole(engine, ends)
        if catalog is None:
            one_file_system = bool(options.get("one_file_system"))
            how = BuildOptions(exclude=exclude, one_file_system=one_file_system, layouts=None)
            following = Following(whole.tasks_of_part, whole.held, whole.finished)
            listing = Path(ends.catalog)
            build_on_nodes(engine, root, listing, how, progress, [*there, *marks], following)
            whole.walked(Catalog(listing))
        else:
            marks.append(needed(catalog))
            tasks = whole.tasks_of_catalog(catalog, source, progress)
            total = whole.work.cost
            engine.run(tasks, whole.finished, progress, held=whole.held, marks=[*there, *marks], total=total)
        marking.close()
        last = [Task("directories and hard links", copy_last, (ends,)), *_checks(ends)]
        engine.run(last, whole.finished, _said(progress, "directories and hard links: "), marks=marks)
    return whole.done


def copy_file_on_nodes(
    engine: Engine,
    source: Path,
    destination: str,
    options: dict[str, Any],
    progress: Progress,
    *,
    workers: int | None = None,
    rate_bytes_per_s: int | None = None,
    job_id: str | None = None,
) -> Copied:
    """Copy the file `source` to `destination`, a directory or a name, its extents by all workers. Raises CopyError and
    NodesError."""
    file, target = Path(os.path.realpath(source)), Path(os.path.abspath(destination))
    folder = target if target.is_dir() else target.parent
    rate = rate_bytes_per_s and max(1, rate_bytes_per_s // max(1, engine.threads()))
    # The slash at the end says that a directory is meant.
    named = str(target) + "/" * destination.endswith("/")
    ends = Ends(
        *(str(file), named, "", workers, False, rate, job_id, options), roots=(str(file.parent), str(folder))
    )
    whole = _Whole(engine, ends)
    size = file.stat().st_size
    first = whole.task_of_file(os.fsencode(file.name), size)
    with ExitStack() as held:
        there = [] if options.get("dry_run") else [held.enter_context(marked(folder))]
        engine.run([first], whole.finished, progress, marks=[*there, needed(file)], total=float(size))
    return whole.done


@dataclass
class _Filling:
    """A large file, and how many tasks that write its extents have not ended."""

    path: bytes
    left: int


class _Whole:
    """A copy as its tasks come and end."""

    def __init__(self, engine: Engine, ends: Ends) -> None:
        self._engine, self._ends = engine, ends
        self.done = Copied()
        self.work = Split()
        self._tasks = 0
        self._waiting = Waiting()
        self._fills: dict[str, _Filling] = {}

    def finished(self, task: Task, found: Result | Begun) -> list[Task]:
        if isinstance(found, Begun):
            return self._filling(found)
        self.done.add(found)
        filling = self._fills.get(task.name)
        if filling is None:
            return []
        filling.left -= 1
        # What could not be written is said, and tried again by the task that completes the file.
        return [] if filling.left else [self._completing(filling.path, 0.0)]

    def _filling(self, begun: Begun) -> list[Task]:
        """Tasks that write the extents of a file, or the one that completes it where nothing is missing."""
        names, seen, missing = begun.file
        path, size = names[0], float(seen[1])
        if not missing:
            return [self._completing(path, size)]
        each = max(FILL_EXTENTS, -(-len(missing) // (2 * max(1, self._engine.threads()))))
        shown = f"extents of {display(path)}"
        starts = range(0, len(missing), each)
        self._fills[shown] = _Filling(path, len(starts))
        weight = size / len(starts)
        parts = [(names, seen, missing[start : start + each]) for start in starts]
        return [Task(shown, fill, (self._ends, part), weight=weight) for part in parts]

    def _completing(self, path: bytes, weight: float) -> Task:
        return Task(f"copy of {display(path)}", copy_file, (self._ends, path), weight=weight)

    def held(self, is_wanted: bool) -> Task | None:
        """The next task with small files, where enough of them wait, or a worker waits for them."""
        ranges = self._waiting.take(self._engine.threads(), is_wanted=is_wanted)
        if not ranges:
            return None
        number = self._tasks
        self._tasks += 1
        cost = sum(of.cost for of in ranges)
        return Task(f"copy of range {number}", copy_ranges, (self._ends, number, ranges), weight=cost)

    def tasks_of_part(self, folder: Path, part: Part) -> list[Task]:
        """Those of the large files in a part of the walk, which goes on; its small ones wait."""
        threads = self._engine.threads()
        return self._tasks_of(split_part(folder, part, threads, links_apart=self._ends.links_apart))

    def tasks_of_catalog(self, catalog: Path, source: Path, progress: Progress) -> list[Task]:
        """Raises CatalogError where the catalog is another tree's."""
        listed = Catalog(catalog)
        if not same_entry(listed.root, Path(self._ends.source)):
            raise CatalogError(
                f"{catalog} is a catalog of {display(str(listed.root))}, not of {display(str(source))}: name one of the source"
            )
        threads, links_apart = self._engine.threads(), self._ends.links_apart

        def report() -> None:
            progress("listing", 0.0)

        self.work = split(listed, threads, links_apart=links_apart, report=report)
        return self._tasks_of(self.work)

    def task_of_file(self, path: bytes, size: int) -> Task:
        """The first task of a file."""
        if size >= DIVIDED_BYTES and self._engine.threads() > 1 and not self._ends.dry_run:
            shown = f"beginning of {display(path)}"
            return Task(shown, begin_file, (self._ends, path), weight=0.0, first=True)
        return self._completing(path, float(size))

    def _tasks_of(self, work: Split) -> list[Task]:
        """The large files first: the last tasks to end are then small."""
        large = sorted(work.large, key=lambda one: (-one[1], one[0]))
        ends = self._ends
        if ends.names is not None and large:
            asked = _wanted(ends.names).asks_for([path for path, _ in large], [False] * len(large))
            large = [one for one, is_asked in zip(large, asked, strict=True) if is_asked]
        tasks = [self.task_of_file(path, size) for path, size in large]
        self._waiting.add(work.ranges)
        return tasks

    def walked(self, listed: Catalog) -> None:
        """What the walk itself has met."""
        for name in ("excluded", "vanished"):
            self.done.counts[name] = self.done.counts.get(name, 0) + listed.manifest.counts.get(name, 0)
        errors = [(os.fsencode(path), "error", f"source: {text}") for path, text in listed.manifest.errors]
        counts = {"errors": listed.manifest.counts.get("errors", 0)}
        whole = not counts["errors"] and not listed.manifest.counts.get("vanished")
        self.done.add(Result(counts, errors, complete=whole))


def _said(progress: Progress, before: str) -> Progress:
    return lambda what, share: progress(before + what, share)


def _written(path: Path, names: NameList) -> str:
    """The names in a file that all nodes read. Raises OSError."""
    path.write_bytes(b"".join(name + b"\0" for name in names.names()))
    return str(path)


@functools.lru_cache(maxsize=1)
def _wanted(file: str) -> NameList:
    """The names in a file, kept between the tasks of a worker."""
    return NameList(Path(file).read_bytes(), True)


def _checks(ends: Ends) -> list[Task]:
    """Tasks that look whether the names of the list are there."""
    if ends.names is None:
        return []
    text = Path(ends.names).read_bytes()
    bounds = [0]
    while bounds[-1] < len(text):
        bounds.append(text.find(b"\0", min(bounds[-1] + CHECKED_BYTES, len(text) - 1)) + 1)
    pairs = pairwise(bounds)
    return [Task("the names of the list", check_names, (ends, start, end)) for start, end in pairs]


def check_names(here: Here, ends: Ends, start: int, end: int) -> Result:
    """In a worker: which names of the list, bytes `start` to `end` of its file, are not at the source."""
    problems: list[tuple[bytes, str, str]] = []
    missing = 0
    assert ends.names is not None
    with open(ends.names, "rb") as file:
        file.seek(start)
        names = file.read(end - start).split(b"\0")[:-1]
    for name in names:
        try:
            os.lstat(os.path.join(os.fsencode(ends.source), name))
        except (FileNotFoundError, NotADirectoryError):
            missing += 1
            if len(problems) < LISTED:
                problems.append((name, "error", "is in the list and not at the source"))
        except OSError as error:
            missing += 1
            problems.append((name, "error", f"source: {error.strerror}"))
    return Result({"errors": missing}, problems, complete=not missing)


def copy_ranges(here: Here, ends: Ends, number: int, ranges: tuple[Range, ...]) -> Result | Begun:
    """In a worker: copy the entries of ranges. Raises CopyError, CatalogError."""
    names, objects = paths_in(ends.catalog, ranges, links_apart=ends.links_apart)
    if ends.names is not None:
        asked = _wanted(ends.names).asks_for(names, [False] * len(names))
        # The targets are those of all names, in order: without them the order is that of the list.
        names, objects = [name for name, is_asked in zip(names, asked, strict=True) if is_asked], None
    return _copy(here, ends, names, key_of_range(number), objects=objects)


def copy_file(here: Here, ends: Ends, path: bytes) -> Result | Begun:
    """In a worker: copy one large file, from where an earlier attempt has left it. Raises CopyError."""
    return _copy(here, ends, [path], _key_of(ends, path))


def begin_file(here: Here, ends: Ends, path: bytes) -> Result | Begun:
    """In a worker: prepare a large file, so that all nodes write its extents. Raises CopyError."""
    return _copy(here, ends, [path], _key_of(ends, path), divide=True)


def _key_of(ends: Ends, path: bytes) -> str:
    """The key of a large file; that of a lone one is the same for this source and destination only."""
    return key_of_file(path if ends.roots is None else os.fsencode(f"{ends.source}\0{ends.destination}"))


def fill(here: Here, ends: Ends, part: Divided) -> Result:
    """In a worker: write some extents of a large file that was begun."""
    names, seen, extents = part
    options = FillOptions(
        names=names,
        seen=seen,
        extents=extents,
        workers=here.threads(ends.workers, USUAL_FILLERS),
        verify=ends.options.get("verify", "none"),
        rate_bytes_per_s=ends.rate_bytes_per_s,
    )

    def report(counts: dict[str, int]) -> None:
        here.progress("copying", min(counts["objects"] / len(extents), 0.99))

    with (
        FileFill(*(ends.roots or (ends.source, ends.destination)), options) as filling,
        reported(filling, _flow(ends)) as flow,
    ):
        follow(filling, report)
        if not filling.complete:
            flow.outcome = "failed"
        # A problem here is one of the task that completes the file, which meets it again.
        return Result({"bytes": filling.progress()["bytes"]})


def copy_last(here: Here, ends: Ends) -> Result | Begun:
    """In a worker, when all other tasks are done: hard links, empty directories, attributes of all directories, and
    what killed tasks of earlier copies have left. Raises CopyError, CatalogError."""
    names: list[bytes] = []
    size = 0
    for some, folders in paths_apart(opened(ends.catalog), links_apart=ends.links_apart):
        if ends.names is not None:
            asked = _wanted(ends.names).asks_for(some, folders)
            some = [name for name, is_asked in zip(some, asked, strict=True) if is_asked]
        names += some
        size += sum(map(len, some)) + len(some)
        here.progress("reading the catalog", 0.0)
    if size > COPY_LIST_BYTES:
        raise NodesError(
            f"{display(ends.source)}: paths of directories and hard links take more than {COPY_LIST_BYTES >> 20} MiB:"
            " copy the tree in parts"
        )
    if not ends.dry_run:
        clear_shares(ends.source, ends.destination)
    return _copy(here, ends, names, LAST, directories=True)


def _copy(
    here: Here,
    ends: Ends,
    names: list[bytes],
    key: str,
    *,
    directories: bool = False,
    divide: bool = False,
    objects: Objects | None = None,
) -> Result | Begun:
    usual = min(16, 2 * len(os.sched_getaffinity(0)))
    copying = start(
        ends.source,
        ends.destination,
        names if ends.roots is None else None,
        key,
        here.progress,
        directories=directories,
        objects=objects,
        divide=divide,
        workers=here.threads(ends.workers, usual),
        rate_bytes_per_s=ends.rate_bytes_per_s,
        **ends.options,
    )

    def report(counts: dict[str, int]) -> None:
        moved = counts["bytes"] + counts["resumed_bytes"]
        share = max(moved / max(counts["found_bytes"], 1), counts["files"] / max(counts["found"], 1))
        here.progress("copying", min(share, 0.99))

    with copying, reported(copying, _flow(ends)) as flow:
        follow(copying, report)
        if not copying.complete:
            flow.outcome = "failed"
        if begun := copying.divided():
            return Begun(begun[0])
        # A task counts the directories on its way, which are those of many tasks.
        counts = copying.progress() | {"found": len(names)}
        return Result(counts, copying.problems(), copying.planned(), copying.complete)


def _flow(ends: Ends) -> FlowDescription:
    """Each task is a flow of its node, which policies and users pace."""
    return FlowDescription(
        "staging" if ends.job_id else "io",
        "copy",
        job_id=ends.job_id,
        source=storage(ends.source, ends.targets),
        destination=storage(ends.destination),
    )
