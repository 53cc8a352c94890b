"""Building a catalog, resuming an interrupted build, and refreshing a catalog.

Arrives: a tree and how to walk it; perhaps what an earlier walk left.
Leaves: a catalog under its name at one moment, or a journal from which the next call goes on.
Must not know: what is asked of a catalog.

All three are one session: parts that are already there are kept as far as the file system says that their
directories have not changed; the rest of the tree is read. A new build begins with no parts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from waystage._native import exchange_paths
from waystage.catalog.apart import same_entry
from waystage.catalog.errors import BuildError, CatalogBusy, CatalogError, CatalogHidden, SourceMissing
from waystage.catalog.kept import Kept, Known, drop_entries, known_directories
from waystage.catalog.options import JOURNAL, LOCK, REPLACED, UNFINISHED, BuildOptions
from waystage.catalog.parts import give_name
from waystage.catalog.recording import Recorded, record
from waystage.catalog.store import MANIFEST, Catalog, Manifest, is_catalog
from waystage.display import display
from waystage.task import Progress

AS_USUAL = BuildOptions()

Record = Callable[[Path, Manifest, Known | None, BuildOptions, Progress | None], Recorded]
"""How a tree is walked into parts: `record` on this machine, `waystage.catalog.on_nodes` on many."""


@dataclass(frozen=True)
class Built:
    """The result of a build or refresh."""

    path: Path
    entries: int
    counts: dict[str, int]
    kept: int
    """Entries kept from earlier parts without reading their directories."""
    seconds: float
    resumed: bool


def build(
    tree: Path,
    target: Path,
    options: BuildOptions = AS_USUAL,
    progress: Progress | None = None,
    record: Record = record,
) -> Built:
    """Catalogue `tree` at `target`, resuming an interrupted build of the same tree.

    Raises BuildError where the tree cannot be read or the catalog not be written, CatalogError where what is at
    `target` is something else, or a catalog of another tree and not to be replaced. A catalog of this tree that is
    there already is replaced, at one moment, when the new one is whole.
    """
    root = Path(os.path.abspath(tree)).resolve()
    if not root.is_dir():
        raise SourceMissing(f"{display(str(tree))} is no directory that can be read: name the top of a tree")
    if target.exists() and not is_catalog(target):
        raise CatalogError(f"{target} is there already and is no catalog: choose another name")
    if target.exists() and not options.replace:
        _refuse_another(target, root)
    wanted = Manifest(str(root), list(options.exclude), options.one_file_system, options.layouts)
    with workplace(target) as folder:
        journal = folder / JOURNAL
        manifest = wanted
        if journal.exists() and not options.restart:
            manifest = _journal_of(folder, wanted)
        if options.restart or manifest.trusting:
            # What an interrupted refresh took over unread is not for a build, which reads all.
            empty(folder)
            manifest = wanted
        return _session(target, folder, manifest, options, progress, record=record)


def refresh(
    target: Path,
    options: BuildOptions = AS_USUAL,
    progress: Progress | None = None,
    *,
    trust_directories: bool = False,
    stale: Iterable[bytes] | None = None,
) -> Built:
    """Update a catalog from its tree, with the patterns that it was built with.

    Every entry is looked at anew: no file system changes a directory's time when a file in it is rewritten. With
    `trust_directories`, entries of directories whose own times have not changed are kept unread, which is right for
    trees whose files are never rewritten in place. With `stale`, paths that a check found stale, their directories
    are read anew besides those whose times have changed, and all others are kept: the quick way to update the
    entries that were found stale.
    """
    doubted = None if stale is None else frozenset(path.rpartition(b"/")[0] for path in stale)
    old = Catalog(target)
    if old.manifest.sections:
        raise CatalogError(
            f"{target} is a shared catalog: refresh the one it was made of, and share that again"
        )
    if not old.root.is_dir():
        raise SourceMissing(f"{display(str(old.root))}, which {target} is of, is no longer there")
    was = old.manifest
    wanted = Manifest(was.root, was.exclude, was.one_file_system, was.layouts)
    # What a recording missed may be files that were rewritten in place, which no directory tells.
    trust_directories = trust_directories and not was.gaps
    with workplace(target) as folder:
        # What is to be doubted is not in a journal: such a refresh always begins anew.
        if (folder / JOURNAL).exists() and not options.restart and doubted is None:
            manifest = _journal_of(folder, wanted)
            if trust_directories or not manifest.trusting:
                return _session(target, folder, manifest, options, progress)
        empty(folder)
        if not trust_directories and doubted is None:
            return _session(target, folder, wanted, options, progress)
        for part in old.manifest.parts:
            for name in (part.entries, part.directories):
                give_name(target / name, folder / name)
        wanted.trusting = True
        wanted.gaps = dict(was.gaps)  # Only the entries found stale are updated.
        wanted.parts = list(old.manifest.parts)
        wanted.started = was.started
        wanted.targets = list(was.targets)
        return _session(target, folder, wanted, options, progress, doubted or frozenset())


def _refuse_another(target: Path, root: Path) -> None:
    """Raise CatalogError where `target` is a catalog that a build of `root` would destroy rather than update."""
    try:
        there = Manifest.load(target / MANIFEST)
    except CatalogHidden:
        raise
    except CatalogError:
        return  # A damaged one is of no use, and is to be built anew.
    if there.sections:
        raise CatalogError(
            f"{target} is a shared catalog, of {display(there.root)}: choose another name, or give --replace"
        )
    if there.root != str(root) and not same_entry(there.root, root):
        raise CatalogError(
            f"{target} is a catalog of {display(there.root)}, not of {display(str(root))}: choose another name, or give"
            " --replace"
        )


def _session(
    target: Path,
    folder: Path,
    manifest: Manifest,
    options: BuildOptions,
    progress: Progress | None,
    doubted: frozenset[bytes] = frozenset(),
    record: Record = record,
) -> Built:
    began = time.time()
    resumed = bool(manifest.parts)
    kept = Kept.none()
    if manifest.parts:
        kept = known_directories(folder, manifest, doubted)
    # While older parts are among its own, a journal keeps the older start: it says from when on times are doubtful.
    session = replace(
        manifest, started=manifest.started if manifest.parts else began, parts=list(manifest.parts)
    )
    session.save(folder / JOURNAL)
    recorded = record(folder, session, kept.known, options, progress)
    if manifest.parts:
        drop_entries(folder, session, len(manifest.parts), recorded.unchanged)
    entries = sum(part.rows for part in session.parts)
    session.counts = dict(recorded.counts)
    session.errors = recorded.errors
    session.trusting = False
    session.started = began
    session.finished = time.time()
    session.save(folder / MANIFEST)
    (folder / JOURNAL).unlink()
    publish(folder, target)
    return Built(
        target,
        entries,
        session.counts,
        entries - recorded.rows,
        session.finished - began,
        resumed,
    )


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """The folder of an unfinished catalog beside its final place, locked against other builds."""
    folder = target.with_name(target.name + UNFINISHED)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror}: choose another place") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CatalogBusy(f"another process is building {target}: wait for it to end") from None
        yield folder
    finally:
        os.close(lock)


def _journal_of(folder: Path, wanted: Manifest) -> Manifest:
    found = Manifest.load(folder / JOURNAL)
    if found.asked_for() != wanted.asked_for():
        raise BuildError(
            f"{folder} holds an unfinished catalog of {display(found.root)} with other options: finish that, or use --restart"
        )
    return found


def empty(folder: Path) -> None:
    """Remove everything from a work folder but its lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def publish(folder: Path, target: Path) -> None:
    """Give the catalog its name; readers see the old one or the new one."""
    (folder / LOCK).unlink()
    named = {MANIFEST}
    for part in Manifest.load(folder / MANIFEST).parts:
        named |= {part.entries, part.directories}
    for path in folder.iterdir():
        if path.name not in named:
            path.unlink()
    take_name(folder, target)


def take_name(folder: Path, target: Path) -> None:
    """Rename `folder` to `target` atomically, and remove what had that name."""
    if not target.exists():
        os.rename(folder, target)
        return
    try:
        exchange_paths(folder, target)
    except OSError:
        # Some file systems cannot exchange names: for a moment there is no catalog, never half a one.
        aside = target.with_name(target.name + REPLACED)
        os.rename(target, aside)
        os.rename(folder, target)
        folder = aside
    shutil.rmtree(folder)
