"""New images by many nodes: a share of the images is a task.

Arrives: images, operations, a target, an engine.
Leaves: the images that one node makes, or a shard for each task; counts; broken images.
Must not know: how images are transformed, how tasks reach nodes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from waystage.augment.options import AugmentOptionError, AugmentOptions
from waystage.augment.write import Written, hold_apart, write
from waystage.catalog.listing import hold_lists_apart, listing_of
from waystage.nodes import Engine, Here, Task, marked, shared_folder
from waystage.nodes.shared import alone
from waystage.ranks import Rank
from waystage.task import Progress

TASKS_A_THREAD = 4
"""A killed worker costs a quarter of its images at most."""

LISTED = 10_000
"""Broken images that are listed; all are counted."""


@dataclass(frozen=True)
class Work:
    """What all tasks have in common: paths that every node has."""

    listing: str
    target: str
    lists: str
    shares: int
    options: AugmentOptions


def write_on_nodes(
    engine: Engine,
    source: Path,
    target: Path,
    options: AugmentOptions,
    progress: Progress,
    *,
    directory: Path,
    overwrite: bool = False,
) -> Written:
    """Make new images of `source` in `target`, as `write` does, by the workers of `engine`.

    Into a tar file, each task writes its own shard, `NAME-NNNNN-of-NNNNN.tar`. Raises AugmentError,
    AugmentOptionError, BuildError, CatalogError, NodesError.
    """
    shard = target.suffix == ".tar"
    if shard and target.is_dir():
        raise AugmentOptionError(
            f"{target} is a folder: name a tar file, or a folder that does not end with .tar"
        )
    hold_apart(source, target)
    hold_lists_apart(source, directory)
    above = target.parent if shard else target
    above.mkdir(parents=True, exist_ok=True)
    with shared_folder(directory) as (lists, mark), marked(above) as there:
        exclude, one = options.exclude, options.one_file_system
        marks = (mark, there)
        listing = listing_of(engine, source, lists, progress, marks, exclude=exclude, one_file_system=one)
        threads = max(1, engine.threads())
        shares = (_shards_there(target)[0] if shard else None) or TASKS_A_THREAD * threads
        rate = options.bytes_per_s and max(1, options.bytes_per_s // threads)
        work = Work(
            str(listing.path), os.path.abspath(target), str(lists), shares, replace(options, bytes_per_s=rate)
        )
        found: list[Written] = []
        there_already = _shards_there(target)[1] if shard and not overwrite else set()
        # A shard that this command makes is made again where its worker is killed before it has reported on it.
        tasks = [
            Task(
                f"images {n} of {shares}",
                write_share,
                (work, n, overwrite or (shard and n not in there_already)),
            )
            for n in range(shares)
        ]
        engine.run(
            tasks,
            lambda task, written: found.append(written),
            progress,
            marks=listing.marks,
            total=len(tasks),
        )
    return _together(target, found, listing.excluded, listing.errors)


def _together(target: Path, found: list[Written], left_out: int, errors: list[tuple[bytes, str]]) -> Written:
    counts: dict[str, int] = {}
    errors = list(errors)
    for written in found:
        for name, count in written.counts.items():
            counts[name] = counts.get(name, 0) + count
        errors = [*errors, *written.errors][:LISTED]
    # Every task leaves out the same entries of the catalog.
    most = max((written.counts.get("excluded", 0) for written in found), default=0)
    if counts:
        counts["excluded"] = left_out + most
    return Written(target, counts, sorted(errors), kept_shard=not counts)


def _shards_there(target: Path) -> tuple[int | None, set[int]]:
    """The number of shards that existing ones are of, where all say the same, and which exist."""
    name = re.compile(rf"{re.escape(target.stem)}-(\d{{5}})-of-(\d{{5}})\.tar")
    there = [match for path in target.parent.iterdir() if (match := name.fullmatch(path.name))]
    of = {int(match[2]) for match in there}
    return (of.pop(), {int(match[1]) for match in there}) if len(of) == 1 else (None, set())


def write_share(here: Here, work: Work, number: int, overwrite: bool) -> Written:
    """In a worker: the new images of one share. Raises AugmentError."""
    options = replace(work.options, threads=here.threads(work.options.threads, work.options.thread_count()))
    # Temporary files have the same names in every attempt.
    with alone(Path(work.lists) / f"images-{number}.lock", here.progress):
        rank = Rank(number, work.shares)
        return write(Path(work.listing), Path(work.target), options, rank, here.progress, overwrite=overwrite)
