"""Copies of striped trees read target by target: the same bytes, no crowd at a target, no wait for a slow one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from copying_trees import snapshot
from harness import Waystage, wait_until
from pfs_support import FAST, Mount, targets_of
from remote_copy_support import parts_written
from waystage._native import NameList, TreeCopy
from waystage.native_options.copies import TreeCopyOptions
from waystage.worlds.lab import pfs

pytestmark = pytest.mark.lab

LAYOUT = """
layout: {parts: [{to: 1 MiB, stripes: 1, stripe_size: 1 MiB}, {stripes: 3, stripe_size: 1 MiB}]}
client: {pages: direct}
"""


@pytest.fixture
def behind(tmp_path: Path) -> Path:
    """What the emulated file system serves: small files in two directories, and one of more than an extent."""
    top = tmp_path / "behind"
    for number in range(60):
        folder = top / f"d{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(os.urandom(20_000 + number))
    with open(top / "large", "wb") as file:
        file.write(os.urandom(5 << 20))
        file.seek(40 << 20)
        file.write(os.urandom((50 << 20) + 12_345))
    os.link(top / "d0/f2", top / "d1/second")
    return top


def most(mounted: pfs.Mounted) -> int:
    return max(int(target["most_in_service"]) for target in pfs.statistics(mounted)["targets"])


@pytest.mark.parametrize("verify", ["none", "storage"])
def test_a_copy_by_target_has_the_bytes_of_the_source_and_no_crowd_at_a_target(
    mount: Mount, point: Path, behind: Path, tmp_path: Path, verify: str
) -> None:
    mounted = mount(FAST + LAYOUT, folder=behind)
    wanted = TreeCopyOptions(
        workers=8, readers_per_target=1, verify=verify, exclude=[b".waystage-statistics"]
    )
    with TreeCopy(point, tmp_path / "copy", wanted) as copy:
        copy.wait()
        assert copy.complete and copy.problems() == []
    # A file of one extent is read in one piece: its further stripes may meet a reader of their target.
    assert most(mounted) <= 2
    assert snapshot(tmp_path / "copy") == snapshot(behind)
    with TreeCopy(point, tmp_path / "copy", wanted) as again:
        again.wait()
        assert again.progress()["files"] == 0 and again.complete


def in_pool(name: str) -> bytes:
    """What `lfs setstripe -c 1 -S 1M -p NAME` asks for, in Lustre's form V3."""
    return bytes.fromhex("d00bd30b01000000" + "00" * 16 + "000010000100ffff") + name.encode().ljust(16, b"\0")


def test_a_slow_target_holds_up_only_its_own_files(mount: Mount, point: Path, tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    shape = FAST.replace("count: 4", "count: 2, slower: [[0, 2000]]")
    shape += "layout: {pools: {slow: [0], quick: [1]}, parts: [{stripes: 1}]}\n"
    mount(shape, folder=behind)
    for number in range(80):
        (behind / f"f{number:02}").touch()
    # In the order of the walk, that of inodes, as many come from either.
    with os.scandir(point) as entries:
        in_order = [entry.name for entry in sorted(entries, key=os.DirEntry.inode) if entry.name[0] == "f"]
    for place, name in enumerate(in_order):
        os.setxattr(point / name, "lustre.lov", in_pool(("slow", "quick")[place % 2]))
        assert targets_of(point / name) == [f"ost:{place % 2}"]
        (behind / name).write_bytes(os.urandom(100_000))
    pfs.unmount(point)
    mounted = mount(shape, folder=behind)
    with TreeCopy(point, tmp_path / "copy", TreeCopyOptions(workers=4)) as copy:

        def read() -> list[int]:
            return [int(target["read_bytes"]) for target in pfs.statistics(mounted)["targets"]]

        # In the order of the walk all threads wait for the slow target after a few files, and as many come from either.
        wait_until(lambda: read()[1] >= 40 * 100_000)
        assert read()[0] < 30 * 100_000
        copy.cancel()


def test_a_killed_copy_by_target_goes_on_within_a_large_file(
    waystage: Waystage, mount: Mount, point: Path, tmp_path: Path
) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "large").write_bytes(os.urandom(160 << 20))
    mount(FAST.replace("1 GB", "100 MB") + LAYOUT, folder=behind)
    words = ["copy", point, "copy", "--workers", "4"]
    running = subprocess.Popen(
        [sys.executable, "-m", "waystage", *map(str, words), "--bandwidth-limit", "12M"], cwd=tmp_path
    )
    journal = tmp_path / "copy" / ".waystage-copy" / "journal"
    # The first of five extents is there after three seconds, the last after thirteen.
    wait_until(lambda: parts_written(journal) > 0, running)
    running.send_signal(signal.SIGKILL)
    running.wait()
    again = waystage(*words, "--verify", "--json").expect()
    assert again.json["counts"]["resumed_bytes"] > 0
    assert (tmp_path / "copy/large").read_bytes() == (behind / "large").read_bytes()


def test_targets_of_a_list_of_names_are_those_that_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    names = [f"f{number}" for number in range(20)]
    for name in names:
        (tmp_path / "from" / name).write_bytes(os.urandom(1000))
    first = b"".join(number.to_bytes(4, "little") for number in range(21))
    target = b"".join((number % 3).to_bytes(4, "little") for number in range(20))
    offset, length = bytes(8 * 20), (1000).to_bytes(8, "little") * 20
    text = b"".join(os.fsencode(name) + b"\0" for name in names)
    listed = NameList(text, True, (first, target, offset, length))
    assert listed.has_objects and not NameList(text, True).has_objects
    with TreeCopy(tmp_path / "from", tmp_path / "to", TreeCopyOptions(workers=4, names=listed)) as copy:
        copy.wait()
        assert copy.complete
    assert snapshot(tmp_path / "to") == snapshot(tmp_path / "from")
    with pytest.raises(ValueError, match="places are not those of the list"):
        NameList(text, True, (first[:40], target, offset, length))
    with pytest.raises(ValueError, match="different lengths"):
        NameList(text, True, (first, target, offset, length[:8]))
