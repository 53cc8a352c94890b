"""Options that name an output: a device, FIFO, socket or open descriptor keeps its place, in every subcommand."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Ran, Waystage


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tree, a catalog of it and a pattern, for tests to copy."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "tree").mkdir()
    (folder / "tree/file").write_text("x" * 5000)
    for number in range(8):
        (folder / f"tree/{number}").write_bytes(bytes([number]) * 300_000)
    code = (
        "from waystage.cli.main import run\nassert run(['catalog', 'build', 'tree', 'catalog', '-q']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    yield folder


def writers(folder: Path) -> dict[str, tuple[str, ...]]:
    """The commands that write the file `out`, which work without a cluster."""
    return {
        "catalog export": ("catalog", "export", "catalog", "-o", "out"),
        "profile-targets": ("profile-targets", "tree", "-o", "out", "-q", "--share", "100"),
        "copy": ("copy", "tree/file", "out"),
        "statistics of a copy": ("copy", "tree", "copy", "--statistics", "out"),
    }


WRITERS = ["catalog export", "profile-targets", "copy", "statistics of a copy"]


@pytest.fixture
def folder(given: Path, tmp_path: Path) -> Path:
    for name in ("tree", "catalog"):
        shutil.copytree(given / name, tmp_path / name)
    return tmp_path


def node_of(path: Path) -> tuple[int, int, int]:
    about = os.lstat(path)
    return stat.S_IFMT(about.st_mode), about.st_rdev, about.st_ino


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("by", ["itself", "a link"])
def test_a_device_stays_a_device(folder: Path, waystage: Waystage, command: str, by: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("making a device needs root")
    device = folder / ("out" if by == "itself" else "device")
    # A device like /dev/null, and never that one.
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    if by == "a link":
        (folder / "out").symlink_to(device)
    before = node_of(device)
    ran = waystage(*writers(folder)[command])
    assert node_of(device) == before
    assert (folder / "out").is_symlink() == (by == "a link")
    assert not [name for name in os.listdir(folder) if name.startswith(".")], "a draft was left"
    if command == "copy":
        assert (ran.code, "is a device, FIFO or socket" in ran.err) == (3, True)
    else:
        assert ran.code == 0, ran


def read_fifo(path: Path, during: Callable[[], Ran]) -> tuple[bytes, Ran]:
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    ran = during()
    reader.join(60)
    return b"".join(found), ran


def test_a_fifo_gets_the_lines_and_stays(folder: Path, waystage: Waystage) -> None:
    os.mkfifo(folder / "out")
    read, ran = read_fifo(folder / "out", lambda: waystage("catalog", "export", "catalog", "-o", "out"))
    assert ran.code == 0
    assert b"file" in read
    assert stat.S_ISFIFO(os.lstat(folder / "out").st_mode)
    copied = waystage("copy", "tree/file", "out")
    assert copied.code == 3 and stat.S_ISFIFO(os.lstat(folder / "out").st_mode)


@pytest.mark.parametrize("command", ["catalog export", "profile-targets", "copy"])
def test_a_socket_is_refused_and_stays(folder: Path, waystage: Waystage, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(folder / "out"))
        ran = waystage(*writers(folder)[command])
    assert ran.code != 0 and "socket" in ran.err
    assert stat.S_ISSOCK(os.lstat(folder / "out").st_mode)


def test_a_block_device_is_refused_and_not_written(folder: Path, waystage: Waystage) -> None:
    if os.geteuid() != 0:
        pytest.skip("making a device needs root")
    os.mknod(folder / "out", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    ran = waystage("catalog", "export", "catalog", "-o", "out")
    assert (ran.code, "block device" in ran.err) == (1, True)
    assert stat.S_ISBLK(os.lstat(folder / "out").st_mode)


@pytest.mark.parametrize("name", ["/dev/fd/1", "/proc/self/fd/1", "link", "further"])
def test_stdout_by_any_name_is_written_into(folder: Path, waystage: Waystage, name: str) -> None:
    # As /dev/stdout leads there, and never that one.
    (folder / "link").symlink_to("/proc/self/fd/1")
    (folder / "further").symlink_to("link")
    with open(folder / "to", "wb") as to:
        to.write(b"before\n")
        to.flush()
        command = [sys.executable, "-m", "waystage", "catalog", "export", "catalog", "-o", name]
        done = subprocess.run(command, cwd=folder, stdout=to, check=False)
        inode = os.fstat(to.fileno()).st_ino
    assert done.returncode == 0
    lines = (folder / "to").read_bytes()
    assert lines.startswith(b"before\n") and b"file" in lines
    assert (folder / "to").stat().st_ino == inode
    assert (os.readlink(folder / "link"), os.readlink(folder / "further")) == ("/proc/self/fd/1", "link")


def test_a_copy_to_an_open_descriptor_is_refused(folder: Path) -> None:
    (folder / "stdout").symlink_to("/proc/self/fd/1")
    with open(folder / "to", "wb") as to:
        command = [sys.executable, "-m", "waystage", "copy", "tree/file", "stdout"]
        done = subprocess.run(command, cwd=folder, stdout=to, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, b"an open file" in done.stderr) == (3, True)
    assert os.readlink(folder / "stdout") == "/proc/self/fd/1"


def test_a_link_stays_and_its_file_is_replaced_whole(folder: Path, waystage: Waystage) -> None:
    (folder / "real").write_text("old")
    (folder / "real").chmod(0o640)
    before = (folder / "real").stat().st_ino
    (folder / "out").symlink_to("real")
    assert waystage("catalog", "export", "catalog", "-o", "out").code == 0
    assert os.readlink(folder / "out") == "real"
    assert "file" in (folder / "real").read_text()
    about = (folder / "real").stat()
    assert (about.st_mode & 0o777, about.st_ino == before) == (0o640, False)
    (folder / "out").unlink()
    (folder / "out").symlink_to("nothing")
    ran = waystage("catalog", "export", "catalog", "-o", "out")
    assert (ran.code, "dangling symbolic link" in ran.err) == (1, True)


def test_a_profile_is_refused_a_device_before_the_program_runs(folder: Path, waystage: Waystage) -> None:
    os.mkfifo(folder / "out")
    ran = waystage("profile", "-o", "out", "--", "touch", "ran")
    assert ran.code == 1 and "not a regular file" in ran.err
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("catalog", "build", "tree", "out"),
        ("catalog", "share", "catalog", "out"),
        ("catalog", "record", "--catalog", "out", "--", "true"),
        ("dedup", "tree", "--parts-in", "out"),
        ("augment", "tree", "out"),
        ("augment", "tree", "out.tar", "--overwrite"),
        ("copy", "tree", "out"),
        ("run", "paper", "--out", "out"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_is_no_folder_is_not_replaced_by_one(
    folder: Path, waystage: Waystage, command: tuple[str, ...]
) -> None:
    name = next(word for word in command if word.startswith("out"))
    os.mkfifo(folder / name)
    ran = waystage(*command)
    assert ran.code != 0, ran
    assert "internal error" not in ran.err
    assert stat.S_ISFIFO(os.lstat(folder / name).st_mode)


def test_a_ready_file_that_is_a_device_is_neither_replaced_nor_removed(folder: Path) -> None:
    from waystage.cli.service import write_ready
    from waystage.outputs import remove_written

    if os.geteuid() != 0:
        pytest.skip("making a device needs root")
    os.mknod(folder / "ready", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    write_ready(folder / "ready", "here\n")
    remove_written(folder / "ready")
    assert stat.S_ISCHR(os.lstat(folder / "ready").st_mode)
    write_ready(folder / "file", "here\n")
    remove_written(folder / "file")
    remove_written(folder / "file")
    assert not (folder / "file").exists()
