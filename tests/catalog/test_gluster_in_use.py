"""A GlusterFS of the lab in real use: its files are catalogued, loaded by brick, copied and verified."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Ran
from waystage._native import read_layout
from waystage.worlds.lab import glusterfs
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.glusterfs import GlusterFs

pytestmark = pytest.mark.lab

Run = Callable[..., Ran]
BLOCK = 4 << 20


@pytest.fixture(scope="module")
def made() -> Iterator[GlusterFs]:
    reason = glusterfs.missing()
    if reason is not None:
        pytest.skip(reason)
    # Sockets of bricks have short names, so the folder must be near the root.
    with tempfile.TemporaryDirectory(prefix="wgl-") as name:
        with glusterfs.running(Path(name) / "g", bricks=4) as running:
            yield running


@pytest.fixture(scope="module")
def point(made: GlusterFs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("point")
    glusterfs.mount(made, place)
    return place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    for number in range(40):
        (top / "sub" / f"file{number}").write_bytes(os.urandom(1000 * number))
    (top / "sharded").write_bytes(os.urandom(3 * BLOCK + 12_345))
    os.utime(top / "sharded", ns=(10**18, 10**18))
    return top


def test_a_tree_is_copied_to_it_and_back_and_verified(
    made: GlusterFs, point: Path, tree: Path, tmp_path: Path, waystage: Run
) -> None:
    waystage("copy", tree, point / "copied", "--verify").expect()
    # The shard translator of the client that wrote a file shows the time of writing until it is unmounted.
    other = tmp_path / "other"
    other.mkdir()
    glusterfs.mount(made, other)
    there = other / "copied"
    waystage("verify", tree, there).expect()
    waystage("copy", there, tmp_path / "back").expect()
    waystage("verify", tree, tmp_path / "back").expect()
    again = waystage("copy", tree, there, "--json").expect().json
    assert again["counts"]["files"] == 0


def test_loaders_are_bound_to_its_bricks_by_a_catalog(
    made: GlusterFs, point: Path, tree: Path, tmp_path: Path, waystage: Run
) -> None:
    there = point / "loaded"
    waystage("copy", tree, there).expect()
    catalog = tmp_path / "catalog"
    waystage("catalog", "build", there, catalog).expect()
    waystage("catalog", "verify", catalog).expect()
    loaded = waystage("load", catalog, "--json").expect().json
    # Later shards than the first are hidden from an ordinary mount.
    names = {target["target"] for target in loaded["targets"]} - {"unknown"}
    bricks = {f"brick:{made.address}:{made.folder}/bricks/brick{number}" for number in range(4)}
    assert len(names) > 1 and names <= bricks
    # Each file is on the brick that its layout names.
    for path in (there / "sub").iterdir():
        layout = read_layout(path)
        assert layout is not None and len(layout["targets"]) == 1
        brick = Path(layout["targets"][0].split(":", 2)[2])
        assert (brick / "loaded/sub" / path.name).exists()


def test_each_shard_is_where_a_special_mount_says(
    made: GlusterFs, point: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = os.urandom(2 * BLOCK + 99)
    (point / "three shards").write_bytes(content)
    special = tmp_path_factory.mktemp("special")
    glusterfs.mount(made, special, layouts=True)
    layout = read_layout(special / "three shards", size=len(content))
    assert layout is not None and layout["components"][0]["stripe_size"] == BLOCK
    pieces = []
    for extent in layout["extents"]:
        brick = layout["components"][extent["component"]]["objects"][extent["object"]]
        with open(brick["id"], "rb") as file:
            file.seek(extent["object_offset"])
            pieces.append(file.read(extent["length"]))
    assert b"".join(pieces) == content


def test_its_shards_are_its_volumes_and_restriping_says_so(point: Path, waystage: Run) -> None:
    (point / "any").write_bytes(b"any")
    refused = waystage("restripe", point, "--layout", "stripes=2").expect(3)
    assert "GlusterFS has its shards from its volume" in refused.err
    assert not [name for name in os.listdir(point) if name.startswith(".waystage")]


def test_what_it_cannot_be_is_said_before_anything_is_started(tmp_path: Path) -> None:
    if glusterfs.missing("none") is not None:
        pytest.skip(str(glusterfs.missing("none")))
    with pytest.raises(LabError, match="at most 60 bytes"):
        glusterfs.start(tmp_path / ("long" * 20), server="none", address="10.0.0.1")
    with pytest.raises(LabError, match="needs the server's address"):
        glusterfs.start(Path("/run/wgl"), server="none")
    with pytest.raises(LabError, match="take a multiple"):
        glusterfs.start(Path("/run/wgl"), server="none", address="10.0.0.1", bricks=3, replicas=2)
    assert not Path("/run/wgl").exists()
