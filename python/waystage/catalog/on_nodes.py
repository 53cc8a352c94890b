"""A walk on many nodes: subtrees as tasks, and each task's rest as further tasks.

Arrives: a tree, the folder of an unfinished catalog, both on storage that all nodes reach.
Leaves: parts in that folder and in the manifest, as one machine's walk leaves them.
Must not know: where the finished catalog goes, how tasks reach nodes.

A task walks its subtrees for some seconds, gives away the directories that it has not begun, and reads those in
progress to their end. So every directory is read by one task, and no subtree is too large. Names of directories stay
on the shared storage: a task receives a piece of a list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from waystage.catalog.build import AS_USUAL, Built, Record, build
from waystage.catalog.errors import BuildError
from waystage.catalog.kept import Known
from waystage.catalog.manifest import private
from waystage.catalog.options import JOURNAL, UNFINISHED, BuildOptions, own_patterns
from waystage.catalog.parts import new_tag
from waystage.catalog.recording import Recorded, Recorder
from waystage.catalog.store import Manifest, Part
from waystage.catalog.walking import batches, start_walk
from waystage.native_options.walks import WalkOptions
from waystage.nodes import Engine, Here, Mark, Task, marked
from waystage.nodes.shared import needed
from waystage.task import Progress, no_progress

FIRST_S = 1.0
LONGEST_S = 30.0
"""A task walks for this long before it gives away what is left: short at first, so that all nodes soon have work, then
twice as long with each generation."""

PIECES = 16
"""Tasks that the rest of one becomes, at most."""

LISTED_ERRORS = 10_000
"""As one walk lists them; more are counted."""

PARTS_A_TASK = 64
"""Numbers kept for the parts of a task: enough for 256 million entries."""

JOURNAL_S = 30.0
"""Between two records of finished parts, for a later build on one machine to resume from."""


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


def build_on_nodes(
    engine: Engine,
    tree: Path,
    target: Path,
    options: BuildOptions = AS_USUAL,
    progress: Progress = no_progress,
    marks: Iterable[Mark] = (),
) -> Built:
    """Catalogue `tree` at `target`, as `waystage.catalog.build` does, by the workers of `engine`.

    Begins anew where an earlier build was interrupted. Raises what that raises, and NodesError.
    """
    return build(tree, target, replace(options, restart=True), progress, _on(engine, tuple(marks)))


def _on(engine: Engine, marks: tuple[Mark, ...]) -> Record:
    def record(
        folder: Path,
        manifest: Manifest,
        known: Known | None,
        options: BuildOptions,
        progress: Progress | None,
    ) -> Recorded:
        del known
        folder = Path(os.path.abspath(folder))
        try:
            with marked(folder) as mark:
                there = (needed(Path(manifest.root)), replace(mark, shown=str(folder.parent)), *marks)
                return _Walk(engine, folder, manifest, options).run(progress or no_progress, there)
        except OSError as error:
            raise BuildError(f"{folder} cannot be written: {error.strerror or error}") from None

    return record


class _Walk:
    def __init__(self, engine: Engine, folder: Path, manifest: Manifest, options: BuildOptions) -> None:
        self._engine, self._folder, self._manifest, self._options = engine, folder, manifest, options
        target = folder.with_name(folder.name.removesuffix(UNFINISHED))
        left_out = (*manifest.exclude, *own_patterns(Path(manifest.root), target))
        self._how = Manifest(manifest.root, list(left_out), manifest.one_file_system, manifest.layouts)
        self._recorded = Recorded()
        self._tasks = 0
        self._saved = time.monotonic()

    def run(self, progress: Progress, marks: tuple[Mark, ...]) -> Recorded:
        def show(what: str, share: float) -> None:
            progress(f"{self._recorded.rows:,} entries; {what}", share)

        first = self._task(Piece(None, 0, 0), FIRST_S)
        self._engine.run([first], self._finished, show, marks=marks)
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
        )
        return Task(f"walk {number}", walk_piece, arguments)

    def _finished(self, task: Task, walked: Walked) -> list[Task]:
        manifest, recorded = self._manifest, self._recorded
        manifest.parts += walked.parts
        manifest.targets = sorted({*manifest.targets, *walked.targets})
        recorded.rows += walked.recorded.rows
        recorded.errors = [*recorded.errors, *walked.recorded.errors][:LISTED_ERRORS]
        for name, count in walked.recorded.counts.items():
            recorded.counts[name] = recorded.counts.get(name, 0) + count
        if time.monotonic() - self._saved > JOURNAL_S:
            manifest.save(self._folder / JOURNAL)
            self._saved = time.monotonic()
        seconds = min(LONGEST_S, 2 * task.arguments[4])
        return [self._task(piece, seconds) for piece in walked.rest]


def walk_piece(
    here: Here,
    folder: str,
    how: Manifest,
    first: int,
    piece: Piece,
    seconds: float,
    options: BuildOptions,
) -> Walked:
    """In a worker: walk the directories of `piece` for about `seconds`, into parts numbered from `first` on.

    What it has not begun by then becomes at most PIECES further ones. A second run of the same piece writes parts of
    other names, and only those that are reported are of the catalog. Raises BuildError, OSError.
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
        for batch in batches(walk, look):
            recorder.add(batch)
        recorder.close_part()
    except BaseException:
        recorder.abandon()
        raise
    recorder.done.counts = walk.progress()
    return Walked(own.parts, recorder.done, walk.targets(), _listed(Path(folder), rest))


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
