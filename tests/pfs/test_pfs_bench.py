"""The ways of reading that `bench nurion` compares: each reads every byte, and asks the servers for what its paper says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from harness import bench_module
from pfs_support import FAST, Mount, busy, counted
from waystage.catalog import BuildOptions, build
from waystage.worlds.lab import pfs

pytestmark = pytest.mark.lab

FILES, SIZE, LOADERS = 40, 70_000, 6
SHAPE = FAST + f"tree: {{files: {FILES}, size: {SIZE}, files_per_directory: 10}}\nclient: {{pages: direct}}\n"


@pytest.fixture
def reading() -> ModuleType:
    return bench_module("_nurion_reading")


@pytest.mark.parametrize("compute_s", [0.0, 0.001], ids=["read", "compute"])
@pytest.mark.parametrize(
    ("way", "lookups", "layouts"),
    [
        ("by_files", FILES, 0),
        ("by_files_walked_together", FILES, 0),
        ("by_our_file_mode", FILES, 0),
        ("by_objects", FILES, 0),
        ("by_catalog", FILES, 0),
    ],
)
def test_each_way_reads_every_byte_once_and_asks_for_what_it_needs(
    mount: Mount,
    reading: ModuleType,
    point: Path,
    tmp_path: Path,
    way: str,
    lookups: int,
    layouts: int,
    compute_s: float,
) -> None:
    catalog = tmp_path / "catalog"
    if way == "by_catalog":
        mount(SHAPE)
        build(point, catalog, BuildOptions())
        pfs.unmount(point, force=True)
    made = mount(SHAPE)
    work = reading.Work(
        top=point,
        catalog=catalog,
        loaders=LOADERS,
        targets=4,
        compute_s=compute_s,
        overlapped=way == "by_files" and compute_s > 0,
    )
    done = getattr(reading, way)(work)
    assert (done.pieces, done.bytes) == (FILES, FILES * SIZE)
    assert 0 < done.known_s <= done.total_s
    assert sum(target["read_bytes"] for target in busy(made)) == FILES * SIZE, "no byte twice"
    messages = counted(made)
    assert messages["open"] >= FILES and messages["close"] >= FILES
    # Who walks looks every file up; who has a catalog asks again as it checks each file that it opened.
    assert lookups <= messages["lookup"] <= lookups + 10
    assert messages["layout"] == layouts, "of an open file the client knows it"


def test_a_failure_of_a_loader_is_the_way_s(reading: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reading.by_files(reading.Work(top=tmp_path / "nowhere", catalog=tmp_path, loaders=LOADERS, targets=4))
