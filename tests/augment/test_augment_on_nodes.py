"""New images by many nodes: the bytes of one, whatever workers are killed."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from harness import Waystage
from nodes_support import dask_cluster, doomed_cluster
from waystage._native import augment_image

OPTIONS = ("--op", "crop:12x12", "--op", "flip", "--op", "noise:4", "--seed", "5", "--copies", "2")


@pytest.fixture
def images(tmp_path: Path, image: bytes) -> Path:
    top = tmp_path / "images"
    for folder in range(3):
        (top / f"d{folder}").mkdir(parents=True)
        for number in range(12):
            made = augment_image(image, ["noise:60"], encoding="png", seed=number + 100 * folder)
            (top / f"d{folder}" / f"{number}.png").write_bytes(made)
    (top / "broken.png").write_bytes(image[:40])
    (top / "labels.csv").write_text("0,cat\n")
    return top


@pytest.fixture
def image() -> bytes:
    """A PNG."""
    data = io.BytesIO()
    Image.frombytes("RGB", (24, 18), random.Random(3).randbytes(3 * 24 * 18)).save(data, "png")
    return data.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_images_of_many_nodes_are_those_of_one(waystage: Waystage, images: Path, tmp_path: Path) -> None:
    one = waystage("augment", images, "one", *OPTIONS, "--json").expect(8).json
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        words = ("augment", images, "many", *OPTIONS, "--json", "--scheduler", cluster.address)
        many = waystage(*words).expect(8).json
        assert contents(tmp_path / "many") == contents(tmp_path / "one")
        assert many["counts"] == one["counts"] and many["errors"] == one["errors"]
        again = waystage(*words).expect(8).json
        assert again["counts"]["made"] == 0 and again["counts"]["kept"] == one["counts"]["made"]


def test_shards_of_many_nodes_hold_together_what_one_shard_holds(
    waystage: Waystage, images: Path, tmp_path: Path
) -> None:
    waystage("augment", images, "one.tar", *OPTIONS).expect(8)
    with dask_cluster(tmp_path / "dask", 2) as cluster:
        words = ("augment", images, "many.tar", *OPTIONS, "--scheduler", cluster.address, "--json")
        waystage(*words).expect(8)
        shards = sorted(tmp_path.glob("many-*-of-*.tar"))
        assert len(shards) == 8
        shards[3].unlink()
        waystage(*words)
        assert sorted(tmp_path.glob("many-*-of-*.tar")) == shards
    held = {}
    for shard in shards:
        held |= members(shard)
    assert held == members(tmp_path / "one.tar")


def members(shard: Path) -> dict[str, bytes]:
    with tarfile.open(shard) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "place", ["waystage.augment.on_nodes:write:0.02", "waystage.augment.on_nodes:write:after"]
)
@pytest.mark.parametrize("target", ["many", "many.tar"])
def test_a_worker_killed_in_its_share_costs_that_share(
    waystage: Waystage, images: Path, tmp_path: Path, place: str, target: str
) -> None:
    with doomed_cluster(tmp_path / "dask", place) as cluster:
        words = ("augment", images, target, *OPTIONS, "--scheduler", cluster.address)
        waystage(*words, timeout=150).expect(8)
    waystage("augment", images, "one.tar" if target.endswith("tar") else "one", *OPTIONS).expect(8)
    if target == "many":
        assert contents(tmp_path / "many") == contents(tmp_path / "one")
        return
    held = {}
    for shard in sorted(tmp_path.glob("many-*-of-*.tar")):
        held |= members(shard)
    assert held == members(tmp_path / "one.tar")
    assert not [name for name in os.listdir(tmp_path) if name.endswith("unfinished")]
