"""Reading from an emulated file system: by programs that know nothing of it, and what its servers counted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from harness import Waystage
from pfs_support import FAST, MADE_UP, Mount, busy, counted, run
from waystage._native import read_layout
from waystage.catalog import BuildOptions, build
from waystage.loader import FileNotLoaded, Loader
from waystage.loader.files import file_set
from waystage.worlds.lab import pfs

pytestmark = pytest.mark.lab


@pytest.fixture
def files(point: Path) -> list[Path]:
    return [point / f"d{i // 10:05d}" / f"f{i:09d}" for i in range(25)]


def test_find_sees_every_file_with_its_size(mount: Mount, point: Path, files: list[Path]) -> None:
    mount()
    found = run("find", point, "-type", "f", "-printf", "%p %s\n").splitlines()
    assert sorted(found) == [f"{file} 300000" for file in files]


@pytest.mark.parametrize("pages", ["kept", "direct"])
def test_programs_that_copy_get_the_same_bytes(mount: Mount, point: Path, tmp_path: Path, pages: str) -> None:
    mount(FAST + MADE_UP + f"client: {{pages: {pages}}}\n")
    run("cp", "-r", point, tmp_path / "cp")
    copies = [tmp_path / "cp"]
    if shutil.which("rsync"):
        run("rsync", "-a", f"{point}/", tmp_path / "rsync")
        copies.append(tmp_path / "rsync")
    if shutil.which("rclone"):
        run("rclone", "--config", "/dev/null", "copy", point, tmp_path / "rclone")
        copies.append(tmp_path / "rclone")
    for copy in copies:
        run("diff", "-r", copy, point)
    whole = (point / "d00000" / "f000000003").read_bytes()
    assert len(whole) == 300_000
    assert len(set(whole)) == 256, "bytes that look random"
    assert whole != (point / "d00000" / "f000000004").read_bytes()


def test_the_same_seed_gives_the_same_files_in_every_mount(mount: Mount, point: Path) -> None:
    def read() -> tuple[bytes, list[str]]:
        return (point / "d00001" / "f000000012").read_bytes(), os.listdir(point / "d00001")

    mount()
    first = read()
    pfs.unmount(point)
    mount()
    again = read()
    pfs.unmount(point)
    mount(FAST + MADE_UP + "seed: 2\n")
    other = read()
    assert first == again
    assert first[0] != other[0]


def test_a_loader_asks_for_no_attributes_that_the_open_told(mount: Mount, point: Path) -> None:
    """A read makes the access time unknown to the client, which would ask the server for it."""
    made = mount(FAST + MADE_UP + "client: {pages: direct}\n")
    files = file_set(point, "file")
    for _ in range(2):
        before = counted(made)
        with Loader(files) as loader:
            assert sum(len(data) for _, data in loader) == 25 * 300_000
        asked = {kind: number - before[kind] for kind, number in counted(made).items()}
    assert {kind: number for kind, number in asked.items() if number} == {"open": 25, "close": 25}


def test_small_files_of_a_catalog_cost_an_open_and_a_close(mount: Mount, point: Path, tmp_path: Path) -> None:
    mount()
    build(point, tmp_path / "catalog", BuildOptions())
    pfs.unmount(point)
    made = mount(FAST + MADE_UP + "client: {pages: direct}\n")
    files = file_set(tmp_path / "catalog")
    for epoch in range(3):
        pfs.reset(made)
        with Loader(files, epoch=epoch) as loader:
            assert sum(len(data) for _, data in loader) == 25 * 300_000
        asked = counted(made)
        assert asked.pop("lookup") == (3 if epoch == 0 else 0), "of the directories"
        assert {kind: number for kind, number in asked.items() if number} == {"open": 25, "close": 25}


@pytest.mark.parametrize("now", [0, 999, 1001, 900_000])
def test_another_size_is_seen_though_the_client_knows_the_old_one(
    mount: Mount, point: Path, tmp_path: Path, now: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"o" * 1000)
    mount(FAST + "client: {pages: direct}\n", folder=folder)
    build(point, tmp_path / "catalog", BuildOptions())
    files = file_set(tmp_path / "catalog")
    assert [len(data) for _, data in Loader(files)] == [1000]
    with (folder / "file").open("r+b") as file:
        file.truncate(now)
        file.seek(0)
        file.write(b"n" * now)
    with pytest.raises(FileNotLoaded, match=f"it has {now} bytes, and 1000 were recorded"):
        list(Loader(files))
    with Loader(files, resized="deliver") as loader:
        assert [data for _, data in loader] == [b"n" * now]
        assert loader.counts()["stale"] == 1


def test_a_read_takes_what_its_target_takes(mount: Mount, files: list[Path]) -> None:
    made = mount(FAST + MADE_UP + "client: {pages: direct}\n")
    descriptor = os.open(files[7], os.O_RDONLY)
    before = pfs.statistics(made)["targets"]
    assert len(os.pread(descriptor, 1 << 20, 0)) == 300_000
    os.close(descriptor)
    layout = read_layout(files[7])
    assert layout is not None
    target = int(layout["components"][0]["objects"][0]["target"].removeprefix("ost:"))
    after = pfs.statistics(made)["targets"]
    changed = [a for a, b in zip(after, before, strict=True) if a != b]
    assert [c["target"] for c in changed] == [target]
    assert (changed[0]["requests"], changed[0]["read_bytes"], changed[0]["most_in_service"]) == (
        1,
        300_000,
        1,
    )
    # 1 ms and 300 kB at 1 GB/s: exactly, however late this machine was.
    assert changed[0]["busy_s"] == pytest.approx(1.3e-3, abs=1e-8)


def test_messages_are_those_of_a_lustre_client(mount: Mount, files: list[Path]) -> None:
    made = mount()
    os.stat(files[0].parent)
    pfs.reset(made)
    os.stat(files[0])
    assert counted(made)["lookup"] == 1, "a stat is one lookup, its glimpse goes to the targets"
    os.stat(files[0])
    assert counted(made)["lookup"] == 1, "the client keeps what it knows"
    pfs.reset(made)
    files[1].read_bytes()
    messages = counted(made)
    assert (messages["open"], messages["close"]) == (1, 1)
    assert messages["lookup"] == 1, "one for the fstat of Python's reading; opening by name is one message"
    pfs.reset(made)
    os.getxattr(files[0], "lustre.lov")
    assert counted(made)["layout"] == 1
    os.listdir(files[0].parent)
    assert counted(made)["readdir"] == 1


def test_pages_that_are_kept_are_read_once(mount: Mount, files: list[Path]) -> None:
    made = mount(FAST + MADE_UP + "client: {pages: kept}\n")
    for _ in range(3):
        files[0].read_bytes()
    assert sum(target["read_bytes"] for target in busy(made)) < 320_000
    pfs.unmount(Path(made.point))
    made = mount(FAST + MADE_UP + "client: {pages: direct}\n")
    for _ in range(3):
        files[0].read_bytes()
    assert sum(target["read_bytes"] for target in busy(made)) == 900_000


def test_layouts_are_read_by_the_catalog_in_every_form(mount: Mount, point: Path, files: list[Path]) -> None:
    forms = {
        "{stripes: 2, stripe_size: 64 KiB}": (b"\xd0\x0b\xd1\x0b", [2]),
        "{stripes: 2, stripe_size: 64 KiB, pool: fast}": (b"\xd0\x0b\xd3\x0b", [2]),
        "{to: 128 KiB, stripe_size: 64 KiB}, {to: 1 MiB, stripes: 3}, {stripes: all}": (
            b"\xd0\x0b\xd6\x0b",
            [1, 3, 0],
        ),
    }
    for parts, (magic, objects) in forms.items():
        mount(FAST + MADE_UP + f"layout: {{pools: {{fast: [1, 3]}}, parts: [{parts}]}}\n")
        assert os.getxattr(files[3], "lustre.lov")[:4] == magic
        layout = read_layout(files[3])
        assert layout is not None and layout["kind"] == "lustre"
        assert [len(c["objects"]) for c in layout["components"]] == objects
        if "pool" in parts:
            used = {o["target"] for c in layout["components"] for o in c["objects"]}
            assert used == {"ost:1", "ost:3"}
        template = read_layout(files[3].parent)
        assert template is not None and template["template"]
        pfs.unmount(point)


def test_a_catalog_of_it_knows_the_targets(
    mount: Mount, point: Path, tmp_path: Path, waystage: Waystage
) -> None:
    mount()
    waystage("catalog", "build", str(point), str(tmp_path / "catalog"), "--json").expect()
    asked = waystage("catalog", "query", str(tmp_path / "catalog"), "--by", "target", "--json").expect()
    assert "ost:0" in asked.out and "ost:3" in asked.out


def test_made_up_files_cannot_be_changed(mount: Mount, point: Path, files: list[Path]) -> None:
    mount()
    for change in (
        lambda: files[0].write_bytes(b"x"),
        lambda: files[0].unlink(),
        lambda: (point / "new").mkdir(),
        lambda: os.truncate(files[0], 0),
        lambda: os.rename(files[0], files[1]),
        lambda: os.setxattr(point, "lustre.lov", b"x" * 48),
    ):
        with pytest.raises(OSError):
            change()
    assert files[0].stat().st_size == 300_000
