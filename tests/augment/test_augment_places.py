"""A target that meets the source is refused, by whatever name it goes: a run would take its own images for new ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from harness import Ran, command, ran
from waystage.augment import AugmentOptions, dry_run, write
from waystage.augment.options import AugmentOptionError
from waystage.ranks import Rank


def augment(source: Path, target: Path, *more: str) -> Ran:
    return ran(command("augment", source, target, *more))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "all/photos"
    (root / "cats").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "cats/1.png")
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_target_that_meets_the_source_is_refused_and_nothing_is_written(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(photos)
    (tmp_path / "around").symlink_to(photos.parent)
    subprocess.run(command("catalog", "build", photos, tmp_path / "cat", "-q"), check=True)
    before = names(tmp_path)
    cases = [
        (photos, photos, "is the source"),
        (photos, tmp_path / "link", "is the source"),
        (tmp_path / "link", photos / "cats" / "..", "is the source"),
        (photos, photos / "new/deep", "is inside the source"),
        (photos, tmp_path / "link/cats/new", "is inside the source"),
        (photos, photos / "shard.tar", "is inside the source"),
        (photos / "cats", tmp_path / "around", "contains the source"),
        (photos, tmp_path, "contains the source"),
        (tmp_path / "cat", photos / "new", "is inside the source"),
        (tmp_path / "cat", tmp_path / "cat", "is the source"),
    ]
    for source, target, how in cases:
        for overwrite, rank in ((False, Rank()), (True, Rank(1, 2))):
            with pytest.raises(AugmentOptionError, match=f"{how} .*name a target that is apart from it"):
                write(source, target, AugmentOptions(), rank, overwrite=overwrite)
        with pytest.raises(AugmentOptionError, match=how):
            dry_run(source, target, AugmentOptions(), Rank())
    refused = augment(photos, photos)
    assert refused.code == 2 and refused.err.count("\n") == 1 and "is the source" in refused.err
    assert names(tmp_path) == before


def test_names_that_only_begin_alike_are_apart(photos: Path) -> None:
    for target in (photos.with_name("photos-new"), photos.with_name("photo"), photos.parent / "photos.tar"):
        write(photos, target, AugmentOptions())
        assert target.exists()


@pytest.fixture
def mounted(photos: Path, tmp_path: Path) -> Iterator[Path]:
    """What is below the source, at a second place."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "--bind", photos / "cats", place], check=False).returncode
    ):
        pytest.skip("a bind mount needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_second_mount_of_the_source_is_the_source(photos: Path, mounted: Path) -> None:
    for source, target, how in (
        (photos, mounted, "is inside"),
        (photos, mounted / "new.tar", "is inside"),
        (photos / "cats", mounted, "is"),
        (mounted, photos, "contains"),
    ):
        with pytest.raises(AugmentOptionError, match=f"{how} the source"):
            write(source, target, AugmentOptions())
    assert names(photos) == {"cats", "cats/1.png"}
