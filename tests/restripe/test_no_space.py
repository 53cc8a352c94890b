"""Storage that is full in the middle of a restriping."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Ran
from pfs_support import FAST
from waystage.worlds.lab import pfs

pytestmark = pytest.mark.lab


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """An emulated file system on 8 MiB of memory."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting the emulated file system needs root and /dev/fuse")
    point, folder = tmp_path / "point", tmp_path / "folder"
    point.mkdir()
    folder.mkdir()
    (tmp_path / "shape.yaml").write_text(FAST)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    try:
        pfs.mount(point, pfs.load(tmp_path / "shape.yaml"), folder=folder)
        yield point
    finally:
        if any(made.point == str(point) for made in pfs.mounted()):
            pfs.unmount(point, force=True)
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_file_system_ends_it_and_leaves_the_files_as_they_were(
    small: Path, waystage: Callable[..., Ran]
) -> None:
    data = os.urandom(5 << 20)
    (small / "file").write_bytes(data)
    inode = (small / "file").stat().st_ino
    full = waystage("restripe", small, "--layout", "stripes=2").expect(1)
    assert "file: destination: write: No space left on device: make room" in full.err
    assert len([line for line in full.err.splitlines() if line.startswith("waystage: error")]) == 1
    assert (small / "file").read_bytes() == data and (small / "file").stat().st_ino == inode
    assert not list(small.glob("*.part"))
