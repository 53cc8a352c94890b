"""New images into a tree or into one tar file.

Arrives: images, what to do to them, where to.
Leaves: files, each whole or not there; counts; what was broken.
Must not know: how images are changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from waystage._native import Augmentation, AugmentError
from waystage.augment.options import AugmentOptionError, AugmentOptions, Progress, images_of, native_columns
from waystage.catalog.apart import meeting
from waystage.catalog.files import TreeFiles
from waystage.catalog.store import MANIFEST
from waystage.display import display
from waystage.ranks import Rank

WAIT_S = 0.2


@dataclass(frozen=True)
class Written:
    """What became of it: counts by name (see docs/how-to/augment.md), and the first of what could not be used."""

    target: Path
    counts: dict[str, int]
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    kept_shard: bool = False


def _no_progress(what: str, share: float) -> None:
    return None


def write(
    source: Path,
    target: Path,
    options: AugmentOptions,
    rank: Rank | None = None,
    progress: Progress = _no_progress,
    *,
    overwrite: bool = False,
) -> Written:
    """Make new images of `source` in `target`, a folder or a name that ends with `.tar`.

    Files and shards that are there are kept unless `overwrite`: the same call goes on where one was interrupted. With several
    ranks each writes a shard of its own, `NAME-RRRRR-of-NNNNN.tar`. Raises AugmentError, AugmentOptionError, BuildError.
    """
    rank = rank or Rank()
    shard = target.suffix == ".tar"
    if shard and rank.of > 1:
        target = target.with_name(f"{target.stem}-{rank.number:05d}-of-{rank.of:05d}.tar")
    if shard and target.is_dir():
        raise AugmentOptionError(
            f"{target} is a folder: name a tar file, or a folder that does not end with .tar"
        )
    if shard and target.exists() and not overwrite:
        _hold_apart(source, target)
        return Written(target, {}, kept_shard=True)
    files = _images_apart_from(target, source, options, rank, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    running = Augmentation(
        files.root,
        native_columns(files),
        target="shard" if shard else "tree",
        path=target,
        overwrite=overwrite,
        **options.native(),
    )
    try:
        while not running.wait(WAIT_S):
            read, done, of = running.progress()
            progress(f"{done:,} of {of:,} files, {read / 1e6:,.0f} MB", done / max(of, 1))
    except BaseException:
        running.stop()
        try:
            running.finish()
        except AugmentError:
            pass  # it was stopped, and says so
        raise
    counts, errors = running.finish()
    return Written(target, counts | {"excluded": files.excluded}, [*files.errors, *errors])


def _images_apart_from(
    target: Path, source: Path, options: AugmentOptions, rank: Rank, progress: Progress | None = None
) -> TreeFiles:
    """The images of `source`, which may be a catalog, once `target` is known to be apart from all of it."""
    _hold_apart(source, target)
    files = images_of(source, options, rank, progress=progress)
    _hold_apart(files.root, target)
    return files


def _hold_apart(source: Path, target: Path) -> None:
    """New images among the old ones would be taken for images by the next run."""
    how = meeting(source, target)
    if how is not None and not (how == "contains" and (source / MANIFEST).is_file()):
        raise AugmentOptionError(
            f"{display(str(target))} {how} the source {display(str(source))}, so new images would come to be among the"
            " old ones: name a target that is apart from it"
        )


def dry_run(source: Path, target: Path, options: AugmentOptions, rank: Rank) -> dict[str, int]:
    """What would be looked at, without opening any file."""
    files = _images_apart_from(target, source, options, rank)
    size = int(files.table["size"].to_numpy().sum())
    return {"files": files.table.num_rows, "bytes": size, "excluded": files.excluded}
