"""New images into a tree or into one tar file.

Arrives: images, operations, a target.
Leaves: files, each complete or absent; counts; broken images.
Must not know: how images are transformed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from waystage._native import Augmentation
from waystage.augment.options import AugmentOptionError, AugmentOptions, images_of, native_columns
from waystage.catalog.apart import meeting
from waystage.catalog.files import TreeFiles
from waystage.catalog.store import is_catalog
from waystage.display import display
from waystage.flows import FlowDescription, reported, storage
from waystage.ranks import Rank
from waystage.task import Progress, follow, no_progress


@dataclass(frozen=True)
class Written:
    """The result: counts by name (see docs/how-to/augment.md), and the first unusable images."""

    target: Path
    counts: dict[str, int]
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    kept_shard: bool = False


def write(
    source: Path,
    target: Path,
    options: AugmentOptions,
    rank: Rank | None = None,
    progress: Progress = no_progress,
    *,
    overwrite: bool = False,
) -> Written:
    """Make new images of `source` in `target`, a folder or a name that ends with `.tar`.

    Existing files and shards are kept unless `overwrite`: the same call resumes an interrupted one. With several ranks
    each writes its own shard, `NAME-RRRRR-of-NNNNN.tar`. Raises AugmentError, AugmentOptionError, BuildError.
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
        hold_apart(source, target)
        return Written(target, {}, kept_shard=True)
    files = _images_apart_from(target, source, options, rank, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    native = options.native(target="shard" if shard else "tree", path=target, overwrite=overwrite)

    def show(counts: dict[str, int]) -> None:
        read, done, found = counts["bytes"], counts["files"], counts["found"]
        progress(f"{done:,} of {found:,} files, {read / 1e6:,.0f} MB", done / max(found, 1))

    running = Augmentation(files.root, native_columns(files), native)
    with reported(running, FlowDescription("io", "augment", source=storage(files.root))):
        follow(running, show)
    counts, errors = running.finish()
    return Written(target, counts | {"excluded": files.excluded}, [*files.errors, *errors])


def _images_apart_from(
    target: Path, source: Path, options: AugmentOptions, rank: Rank, progress: Progress | None = None
) -> TreeFiles:
    """The images of `source`, which may be a catalog, after checking that `target` is outside of it."""
    hold_apart(source, target)
    files = images_of(source, options, rank, progress=progress)
    hold_apart(files.root, target)
    return files


def hold_apart(source: Path, target: Path) -> None:
    """New images among the sources would be sources of the next run."""
    how = meeting(source, target)
    if how is not None and not (how == "contains" and is_catalog(source)):
        raise AugmentOptionError(
            f"{display(str(target))} {how} the source {display(str(source))}, so new images would come to be among the"
            " old ones: name a target that is apart from it"
        )


def dry_run(source: Path, target: Path, options: AugmentOptions, rank: Rank) -> dict[str, int]:
    """The files that would be read, without opening any."""
    files = _images_apart_from(target, source, options, rank)
    size = int(files.table["size"].to_numpy().sum())
    return {"files": files.table.num_rows, "bytes": size, "excluded": files.excluded}
