"""A real folder behind an emulated file system: what programs write is there afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from pfs_support import FAST, Mount, busy, run, targets_of
from waystage.worlds.lab import pfs

pytestmark = pytest.mark.lab

TWO_STRIPES = bytes.fromhex("d00bd10b01000000" + "00" * 16 + "000002000200ffff")
"""What `lfs setstripe -c 2 -S 128K` asks for, in Lustre's form V1."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "folder"
    (top / "old").mkdir(parents=True)
    (top / "old" / "file").write_bytes(b"there before" * 1000)
    return top


def test_what_is_written_is_in_the_folder(mount: Mount, point: Path, folder: Path) -> None:
    made = mount(FAST, folder=folder)
    assert (point / "old" / "file").read_bytes() == b"there before" * 1000
    (point / "new").mkdir()
    (point / "new" / "a").write_bytes(b"a" * 500_000)
    os.chmod(point / "new" / "a", 0o640)
    os.utime(point / "new" / "a", ns=(1_000_000_007, 2_000_000_009))
    os.symlink("a", point / "new" / "link")
    os.link(point / "new" / "a", point / "new" / "hard")
    os.rename(point / "old" / "file", point / "new" / "moved")
    with (point / "new" / "moved").open("ab") as file:
        file.write(b"more")
    os.truncate(point / "new" / "hard", 5)
    (point / "old").rmdir()
    os.mkfifo(point / "fifo")
    assert sum(target["written_bytes"] for target in busy(made)) == 500_004
    pfs.unmount(point)
    found = (folder / "new" / "a").stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode), found.st_nlink) == (5, 0o640, 2)
    assert found.st_atime_ns == 1_000_000_007
    assert os.readlink(folder / "new" / "link") == "a"
    assert (folder / "new" / "moved").read_bytes() == b"there before" * 1000 + b"more"
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)
    assert not (folder / "old").exists()


def test_programs_copy_into_it(mount: Mount, point: Path, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for i in range(12):
        (source / f"d{i % 3}").mkdir(parents=True, exist_ok=True)
        (source / f"d{i % 3}" / f"f{i}").write_bytes(os.urandom(1000 * i))
    mount(FAST, folder=folder)
    run("cp", "-a", source, point / "cp")
    names = ["cp"]
    if shutil.which("rsync"):
        run("rsync", "-a", f"{source}/", point / "rsync")
        run("rsync", "-a", "--checksum", f"{source}/", point / "rsync")
        names.append("rsync")
    if shutil.which("rclone"):
        run("rclone", "--config", "/dev/null", "copy", source, point / "rclone")
        names.append("rclone")
    for name in names:
        run("diff", "-r", source, point / name)
    pfs.unmount(point)
    for name in names:
        run("diff", "-r", source, folder / name)


def test_a_file_that_is_open_outlives_its_name(mount: Mount, point: Path, folder: Path) -> None:
    mount(FAST + "client: {pages: direct, attributes_s: 0}\n", folder=folder)
    with (point / "old" / "file").open("rb") as file:
        (point / "old" / "file").unlink()
        assert file.read(5) == b"there"
        assert os.fstat(file.fileno()).st_nlink == 0


def test_a_layout_set_on_a_directory_is_that_of_its_new_files(
    mount: Mount, point: Path, folder: Path
) -> None:
    mount(FAST, folder=folder)
    assert len(targets_of(point / "old" / "file")) == 1
    os.setxattr(point / "old", "lustre.lov", TWO_STRIPES)
    (point / "old" / "below").mkdir()
    (point / "old" / "below" / "new").write_bytes(b"x" * 1000)
    assert len(targets_of(point / "old" / "below" / "new")) == 2
    assert len(targets_of(point / "old" / "file")) == 1, "old files stay where they are"
    with pytest.raises(OSError) as refused:
        os.setxattr(point / "old" / "file", "lustre.lov", TWO_STRIPES)
    assert refused.value.errno == errno.EEXIST
    odd_size = TWO_STRIPES[:24] + (1000).to_bytes(4, "little") + TWO_STRIPES[28:]
    for damaged in (b"", b"no layout", TWO_STRIPES[:20], odd_size):
        with pytest.raises(OSError):
            os.setxattr(point / "old", "lustre.lov", damaged)
    (point / "old" / "empty").touch()
    os.setxattr(point / "old" / "empty", "lustre.lov", TWO_STRIPES)
    before = targets_of(point / "old" / "below" / "new")
    pfs.unmount(point)
    mount(FAST, folder=folder)
    assert targets_of(point / "old" / "below" / "new") == before, "a new mount finds the same objects"
    os.rename(point / "old" / "below" / "new", point / "renamed")
    assert targets_of(point / "renamed") == before, "a rename moves no object"


def test_attributes_of_programs_are_kept(mount: Mount, point: Path, folder: Path) -> None:
    mount(FAST, folder=folder)
    file = point / "old" / "file"
    try:
        os.setxattr(file, "user.note", b"hello")
    except OSError as error:
        pytest.skip(f"the scratch folder keeps no attributes: {error.strerror}")
    assert os.getxattr(file, "user.note") == b"hello"
    assert set(os.listxattr(file)) == {"user.note", "lustre.lov"}
    os.removexattr(file, "user.note")
    with pytest.raises(OSError):
        os.getxattr(file, "user.note")
    assert os.listxattr(folder / "old" / "file") == []


def test_a_hard_link_stays_when_the_name_that_was_seen_last_is_removed(
    mount: Mount, point: Path, folder: Path
) -> None:
    mount(FAST, folder=folder)
    (point / "one").write_bytes(b"contents")
    for name in ("two", "three"):
        os.link(point / "one", point / name)
        assert (point / name).stat().st_nlink > 1
    (point / "three").unlink()
    os.rename(point / "two", point / "four")
    assert (point / "one").read_bytes() == (point / "four").read_bytes() == b"contents"
    assert (point / "one").stat().st_nlink == 2
