"""A copy by many nodes: ranges of a catalog as tasks, then hard links and attributes of directories in a last one.

Arrives: a tree, or its catalog; a destination; an engine.
Leaves: files complete or absent, as each task's copy leaves them; counts and problems of all tasks together.
Must not know: how bytes are moved, how tasks reach nodes.

Each task has its own journal at the destination, by its key. A task that is run again resumes from it, and one that
runs twice at once waits for its other self.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystage._native import COPY_LIST_BYTES
from waystage.catalog import BuildOptions, Catalog
from waystage.catalog.apart import same_entry
from waystage.catalog.errors import CatalogError
from waystage.catalog.listing import hold_lists_apart
from waystage.catalog.on_nodes import build_on_nodes
from waystage.catalog.ranges import Range, Split, opened, paths_apart, paths_in, split
from waystage.copying.shares import LAST, clear_shares, key_of_file, key_of_range, make_destination, start
from waystage.display import display
from waystage.flows import FlowDescription, reported, storage
from waystage.nodes import Engine, Here, NodesError, Task, marked, shared_folder
from waystage.nodes.shared import needed
from waystage.task import Progress, follow

LISTED = 10_000
"""Problems that are listed, as one copy lists them; all are counted."""

INCOMPLETE = ("errors", "changed", "vanished", "lost")
"""Counts of entries that were not copied as they are."""


@dataclass
class Copied:
    """What all tasks together have copied: the counts and problems of `waystage._native.TreeCopy`."""

    counts: dict[str, int] = field(default_factory=dict)
    listed: list[tuple[bytes, str, str]] = field(default_factory=list)
    complete: bool = True

    def add(self, counts: Mapping[str, int], listed: list[tuple[bytes, str, str]], complete: bool) -> None:
        """Those of one task."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.listed = [*self.listed, *listed][:LISTED]
        self.complete &= complete

    def progress(self) -> dict[str, int]:
        return self.counts

    def problems(self) -> list[tuple[bytes, str, str]]:
        return self.listed

    def planned(self) -> list[tuple[bytes, str, int]]:
        """Nothing: many nodes make no dry run."""
        return []


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
    workers: int | None = None,
    rate_bytes_per_s: int | None = None,
    job_id: str | None = None,
) -> Copied:
    """Copy the tree `source` into `destination` by the workers of `engine`.

    `options` are those of `waystage.native_options.copies.CopyOptions`; `directory` takes lists that all nodes read;
    `catalog` of `source` saves its walk, and entries that are not in it are not copied; `job_id` is of the job that the
    data is for. Raises CopyError, CatalogError,
    BuildError and NodesError.
    """
    root = Path(os.path.realpath(source))
    hold_lists_apart(root, directory)
    make_destination(root, destination)
    with ExitStack() as held:
        folder, listing_mark = held.enter_context(shared_folder(directory))
        # Its end is before the last task, which gives the root its time.
        marking = ExitStack()
        held.callback(marking.close)
        mark = marking.enter_context(marked(Path(destination)))
        marks = [mark, needed(root), listing_mark]
        listing = folder / "listing"
        done = Copied()
        if catalog is None:
            one_file_system = bool(options.get("one_file_system"))
            how = BuildOptions(exclude=exclude, one_file_system=one_file_system, layouts=None)
            build_on_nodes(engine, root, listing, how, _said(progress, "listing: "), marks)
        else:
            listing = Path(os.path.abspath(catalog))
            marks.append(needed(listing))
        listed = Catalog(listing)
        if not same_entry(listed.root, root):
            raise CatalogError(
                f"{catalog} is a catalog of {display(str(listed.root))}, not of {display(str(source))}: name one of the source"
            )
        links_apart = bool(options.get("hard_links", True))
        work = split(
            listed, engine.threads(), links_apart=links_apart, report=lambda: progress("listing", 0.0)
        )
        share = rate_bytes_per_s and max(1, rate_bytes_per_s // max(1, engine.threads()))
        ends = Ends(
            str(root),
            os.path.abspath(destination),
            str(listing),
            workers,
            links_apart,
            share,
            job_id,
            options,
        )

        def finished(task: Task, found: tuple[dict[str, int], list[tuple[bytes, str, str]], bool]) -> None:
            done.add(*found)

        engine.run(_tasks(ends, work), finished, _said(progress, ""), marks=marks, total=work.cost)
        marking.close()
        last = Task("directories and hard links", copy_last, (ends,))
        engine.run([last], finished, _said(progress, "directories and hard links: "), marks=marks[1:])
    _settle(done, listed, work, catalog is None)
    return done


def _tasks(ends: Ends, work: Split) -> list[Task]:
    """The large files first: the last tasks to end are then small."""
    large = sorted(work.large, key=lambda one: (-one[1], one[0]))
    tasks = [
        Task(f"copy of {display(path)}", copy_file, (ends, path), weight=float(size)) for path, size in large
    ]
    for number, of in enumerate(work.ranges):
        tasks.append(Task(f"copy of range {number}", copy_range, (ends, number, of), weight=of.cost))
    return tasks


def _settle(done: Copied, listed: Catalog, work: Split, walked: bool) -> None:
    """Counts of entries found are the catalog's: tasks count directories on their ways again and again."""
    done.counts["found"], done.counts["found_bytes"] = work.entries, work.bytes
    if walked:
        for name in ("excluded", "vanished"):
            done.counts[name] = done.counts.get(name, 0) + listed.manifest.counts.get(name, 0)
        errors = [(os.fsencode(path), "error", f"source: {text}") for path, text in listed.manifest.errors]
        counts = {"errors": listed.manifest.counts.get("errors", 0)}
        done.add(counts, errors, not counts["errors"] and not listed.manifest.counts.get("vanished"))


def _said(progress: Progress, before: str) -> Progress:
    return lambda what, share: progress(before + what, share)


Result = tuple[dict[str, int], list[tuple[bytes, str, str]], bool]


def copy_range(here: Here, ends: Ends, number: int, of: Range) -> Result:
    """In a worker: copy the entries of a range. Raises CopyError, CatalogError."""
    names = paths_in(opened(ends.catalog), of, links_apart=ends.links_apart)
    return _copy(here, ends, names, key_of_range(number))


def copy_file(here: Here, ends: Ends, path: bytes) -> Result:
    """In a worker: copy one large file, from where an earlier attempt has left it. Raises CopyError."""
    return _copy(here, ends, [path], key_of_file(path))


def copy_last(here: Here, ends: Ends) -> Result:
    """In a worker, when all other tasks are done: hard links, empty directories, attributes of all directories, and
    what killed tasks of earlier copies have left. Raises CopyError, CatalogError."""
    names: list[bytes] = []
    size = 0
    for some in paths_apart(opened(ends.catalog), links_apart=ends.links_apart):
        names += some
        size += sum(map(len, some)) + len(some)
        here.progress("reading the catalog", 0.0)
    if size > COPY_LIST_BYTES:
        raise NodesError(
            f"{display(ends.source)}: paths of directories and hard links take more than {COPY_LIST_BYTES >> 20} MiB:"
            " copy the tree in parts"
        )
    clear_shares(ends.source, ends.destination)
    return _copy(here, ends, names, LAST, directories=True)


def _copy(here: Here, ends: Ends, names: list[bytes], key: str, *, directories: bool = False) -> Result:
    usual = min(16, 2 * len(os.sched_getaffinity(0)))
    copying = start(
        ends.source,
        ends.destination,
        names,
        key,
        here.progress,
        directories=directories,
        workers=here.threads(ends.workers, usual),
        rate_bytes_per_s=ends.rate_bytes_per_s,
        **ends.options,
    )

    def report(counts: dict[str, int]) -> None:
        moved = counts["bytes"] + counts["resumed_bytes"]
        share = max(moved / max(counts["found_bytes"], 1), counts["files"] / max(counts["found"], 1))
        here.progress("copying", min(share, 0.99))

    # Each task is a flow of its node, which policies and users pace.
    targets = [name for _, name in opened(ends.catalog).manifest.targets]
    about = FlowDescription(
        "staging" if ends.job_id else "io",
        "copy",
        job_id=ends.job_id,
        source=storage(ends.source, targets),
        destination=storage(ends.destination),
    )
    with copying, reported(copying, about) as flow:
        follow(copying, report)
        if not copying.complete:
            flow.outcome = "failed"
        return copying.progress(), copying.problems(), copying.complete
