"""A walk on many nodes: subtrees as tasks, and each task's rest as further tasks.

Arrives: a tree, the folder of an unfinished catalog, both on storage that all nodes reach.
Leaves: parts in that folder and in the manifest, as one machine's walk leaves them.
Must not know: where the finished catalog goes, how tasks reach nodes.

A task walks its subtrees for some seconds, reads the directories in progress to their end, and gives away all that it
has not begun. So every directory is read by one task, and no subtree is too large. Names of directories stay
on the shared storage: a task receives a piece of a list.

The journal names the parts of finished tasks. An interrupted build resumes from it as one machine's build does: the
tree is walked again, and a directory that the parts have, and whose times are unchanged, is not read.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from waystage.catalog.build import AS_USUAL, Built, Record, build
from waystage.catalog.errors import BuildError
from waystage.catalog.kept import Known, known_directories
from waystage.catalog.manifest import private
from waystage.catalog.options import JOURNAL, UNFINISHED, BuildOptions, own_patterns
from waystage.catalog.parts import new_tag
from waystage.catalog.recording import Recorded, Recorder
from waystage.catalog.store import Manifest, Part
from waystage.catalog.walking import batches, start_walk
from waystage.native_options.walks import WalkOptions
from waystage.nodes import Engine, Held, Here, Mark, Task, marked
from waystage.nodes.shared import needed
from waystage.task import INTERVAL_S, Progress, no_progress

FIRST_S = 0.1
LONGEST_S = 30.0
"""A task walks for this long before it gives away what is left: short at first, so that all nodes soon have work, then
twice as long with each generation."""

LOOKS = 4
"""How often the clock is read in that time, at least."""

LEAST_S = 0.02
"""A task walks for at least this long, so that every task has entries."""

PIECES = 16
"""Tasks that the rest of one becomes, at most."""

LISTED_ERRORS = 10_000
"""As one walk lists them; more are counted."""

PARTS_A_TASK = 64
"""Numbers kept for the parts of a task: enough for 256 million entries."""

JOURNAL_S = 10.0
"""Between two records of finished parts: what a killed build reads again, besides the tasks in progress."""

EARLIER = "_earlier-"
"""Begins the name of the journal of an interrupted build, as the workers read it. The rest is random: workers keep what
they have read, also from one build to the next."""


@dataclass(frozen=True)
class Piece:
    """Directories to walk: bytes of a file with paths, each ended by NUL; without a file the root."""

    file: str | None
    start: int
    end: int

    def tops(self) -> list[bytes]:
        """The paths. Raises OSError."""
        if self.file is None:
            return [b""]
        with open(self.file, "rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start).split(b"\0")[:-1]


@dataclass(frozen=True)
class Walked:
    """What a task has written, and what it has left to others."""

    parts: list[Part]
    recorded: Recorded
    targets: list[tuple[int, str]]
    rest: list[Piece]
    unchanged: str | None = None
    """A file with the directories that were not read, since earlier parts have them, each ended by NUL."""


@dataclass(frozen=True)
class Following:
    """Work on the entries while the walk goes on: `found` takes each finished part and its folder, `held` gives tasks of
    what was found, as `Engine.run` asks for them, `finished` takes their results, from which further tasks follow."""

    found: Callable[[Path, Part], Iterable[Task]]
    held: Held
    finished: Callable[[Task, Any], list[Task]]


def build_on_nodes(
    engine: Engine,
    tree: Path,
    target: Path,
    options: BuildOptions = AS_USUAL,
    progress: Progress = no_progress,
    marks: Iterable[Mark] = (),
    following: Following | None = None,
) -> Built:
    """Catalogue `tree` at `target`, as `waystage.catalog.build` does, by the workers of `engine`, and do what follows from
    each of its parts; what follows from parts of an interrupted build is not done again.

    Resumes an interrupted build, on whichever machines it began. Raises what that raises, and NodesError.
    """
    return build(tree, target, options, progress, _on(engine, tuple(marks), following))


def _on(engine: Engine, marks: tuple[Mark, ...], following: Following | None) -> Record:
    def record(
        folder: Path,
        manifest: Manifest,
        known: Known | None,
        options: BuildOptions,
        progress: Progress | None,
    ) -> Recorded:
        folder = Path(os.path.abspath(folder))
        try:
            with marked(folder) as mark:
                there = (needed(Path(manifest.root)), replace(mark, shown=str(folder.parent)), *marks)
                walk = _Walk(engine, folder, manifest, options, following, resumes=known is not None)
                return walk.run(progress or no_progress, there)
        except OSError as error:
            raise BuildError(f"{folder} cannot be written: {error.strerror or error}") from None

    return record


class _Walk:
    def __init__(
        self,
        engine: Engine,
        folder: Path,
        manifest: Manifest,
        options: BuildOptions,
        following: Following | None,
        *,
        resumes: bool,
    ) -> None:
        self._following = following
        self._engine, self._folder, self._manifest, self._options = engine, folder, manifest, options
        target = folder.with_name(folder.name.removesuffix(UNFINISHED))
        left_out = (*manifest.exclude, *own_patterns(Path(manifest.root), target))
        self._how = Manifest(manifest.root, list(left_out), manifest.one_file_system, manifest.layouts)
        self._recorded = Recorded()
        # Random tags distinguish parts; their numbers say in which order they are.
        self._tasks = 1 + max((part.number for part in manifest.parts), default=-1) // PARTS_A_TASK
        self._earlier = ""
        if resumes:
            earlier = folder / f"{EARLIER}{new_tag()}{new_tag()}"
            manifest.save(earlier)
            self._earlier = str(earlier)
        self._saved = -JOURNAL_S

    def run(self, progress: Progress, marks: tuple[Mark, ...]) -> Recorded:
        def show(what: str, share: float) -> None:
            progress(f"{self._recorded.rows:,} entries; {what}", share)

        first = self._task(Piece(None, 0, 0), FIRST_S)
        try:
            held = None if self._following is None else self._following.held
            self._engine.run([first], self._finished, show, held=held, marks=marks)
        finally:
            # After any end the next build goes on from here.
            self._manifest.save(self._folder / JOURNAL)
        return self._recorded

    def _task(self, piece: Piece, seconds: float) -> Task:
        number = self._tasks
        self._tasks += 1
        arguments = (
            str(self._folder),
            self._how,
            number * PARTS_A_TASK,
            piece,
            seconds,
            self._options,
            self._earlier,
        )
        # Walks come first: what they find is work for the other nodes.
        return Task(f"walk {number}", walk_piece, arguments, first=True)

    def _finished(self, task: Task, walked: Any) -> list[Task]:
        if not isinstance(walked, Walked):
            return [] if self._following is None else self._following.finished(task, walked)
        manifest, recorded = self._manifest, self._recorded
        manifest.parts += walked.parts
        manifest.targets = sorted({*manifest.targets, *walked.targets})
        recorded.rows += walked.recorded.rows
        if walked.unchanged is not None:
            paths = Path(walked.unchanged).read_bytes().split(b"\0")[:-1]
            recorded.unchanged.append(pa.array(paths, pa.binary()))
        recorded.errors = [*recorded.errors, *walked.recorded.errors][:LISTED_ERRORS]
        for name, count in walked.recorded.counts.items():
            recorded.counts[name] = recorded.counts.get(name, 0) + count
        if time.monotonic() - self._saved > JOURNAL_S:
            manifest.save(self._folder / JOURNAL)
            self._saved = time.monotonic()
        seconds = min(LONGEST_S, 2 * task.arguments[4])
        tasks = [self._task(piece, seconds) for piece in walked.rest]
        if self._following is not None:
            for part in walked.parts:
                tasks += self._following.found(self._folder, part)
        return tasks


def walk_piece(
    here: Here,
    folder: str,
    how: Manifest,
    first: int,
    piece: Piece,
    seconds: float,
    options: BuildOptions,
    earlier: str = "",
) -> Walked:
    """In a worker: walk the directories of `piece` for about `seconds`, into parts numbered from `first` on.

    What it has not begun by then becomes at most PIECES further ones. A second run of the same piece writes parts of
    other names, and only those that are reported are of the catalog. `earlier` is the journal of an interrupted build.
    Raises BuildError, CatalogError, OSError.
    """
    own = Manifest(how.root)
    recorder = Recorder(Path(folder), own, journal=False, first=first)
    walk = start_walk(
        Path(how.root),
        WalkOptions(
            threads=here.threads(options.threads, options.thread_count()),
            batch_rows=options.batch_rows,
            exclude=[os.fsencode(pattern) for pattern in how.exclude],
            one_file_system=how.one_file_system,
            layouts=how.layouts,
            known=_known(earlier) if earlier else None,
            tops=piece.tops(),
        ),
    )
    deadline = time.monotonic() + seconds
    rest: list[bytes] = []

    def look(what: str, share: float) -> None:
        if time.monotonic() > deadline:
            rest.extend(walk.take_waiting())
        here.progress(what, share)

    try:
        for batch in batches(walk, look, interval_s=min(INTERVAL_S, max(LEAST_S, seconds / LOOKS))):
            recorder.add(batch)
        # Also what directories in progress have found since.
        rest += walk.take_waiting()
        recorder.close_part()
    except BaseException:
        recorder.abandon()
        raise
    recorder.done.counts = walk.progress()
    unchanged, recorder.done.unchanged = recorder.done.unchanged, []
    rest_of_it = _listed(Path(folder), rest)
    return Walked(own.parts, recorder.done, walk.targets(), rest_of_it, _kept_at(Path(folder), unchanged))


@functools.lru_cache(maxsize=1)
def _known(earlier: str) -> Known | None:
    """The directories of an interrupted build, kept between the tasks of a worker. Raises CatalogError."""
    path = Path(earlier)
    return known_directories(path.parent, Manifest.load(path)).known


def _kept_at(folder: Path, unchanged: list[pa.Array]) -> str | None:
    """A file with these paths; None without any."""
    if not unchanged:
        return None
    path = folder / f"_unchanged-{new_tag()}{new_tag()}"
    with open(path, "xb", opener=private) as file:
        for paths in unchanged:
            file.write(b"".join(name + b"\0" for name in paths.to_pylist()))
    return str(path)


def _listed(folder: Path, rest: list[bytes]) -> list[Piece]:
    """The directories in a file of the folder, cut into pieces of about the same number."""
    if not rest:
        return []
    rest.sort()
    path = folder / f"_rest-{new_tag()}{new_tag()}"
    found: list[Piece] = []
    most = -(-len(rest) // PIECES)
    with open(path, "xb", opener=private) as file:
        for start in range(0, len(rest), most):
            text = b"".join(name + b"\0" for name in rest[start : start + most])
            begin = file.tell()
            file.write(text)
            found.append(Piece(str(path), begin, begin + len(text)))
        file.flush()
        os.fsync(file.fileno())
    return found
