"""A destination where other users may write: what a copy makes for itself cannot be taken over."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from copying_trees import EXTENT, leftovers, make_stalling
from harness import Waystage, wait_until

UNPRIVILEGED = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="playing two users needs root")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which everybody may write, and a victim's file beside it."""
    with tempfile.TemporaryDirectory(prefix="waystage-test-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "copy").mkdir()
        os.chmod(Path(folder) / "copy", 0o777)
        (Path(folder) / "victim").write_text("the victim's")
        yield Path(folder)


def make_secret(path: Path) -> bytes:
    content = make_stalling(path, 2.1)
    path.chmod(0o600)
    return content


def interrupted(source: Path, copy: Path) -> Path:
    """Kill a copy of a large file after its first extent; the file that it was making."""
    command = [sys.executable, "-m", "waystage", "copy", str(source), str(copy)]
    process = subprocess.Popen([*command, "--bandwidth-limit", "1M", "--workers", "1", "-q"])
    journal = copy / ".waystage-copy/journal"
    # The run, the file and an extent: more than 200 bytes, with the paths in them.
    wait_until(lambda: journal.exists() and extents(journal) >= 1, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (draft,) = copy.glob(".waystage-copy-*large*.part")
    return draft


def extents(journal: Path) -> int:
    data, at, count = journal.read_bytes(), len(b"waystage-copy-journal 2\n"), 0
    while at + 8 < len(data):
        count += data[at + 8] == 4
        at += 8 + int.from_bytes(data[at : at + 4], "little")
    return count


def a_file(name: Path, victim: Path, size: int) -> None:
    name.write_bytes(b"")
    os.truncate(name, size)
    os.chmod(name, 0o666)
    os.chown(name, UNPRIVILEGED, UNPRIVILEGED)


def a_file_of_ours_that_is_open_to_others(name: Path, victim: Path, size: int) -> None:
    name.write_bytes(b"")
    os.truncate(name, size)
    os.chmod(name, 0o622)


def a_link(name: Path, victim: Path, size: int) -> None:
    os.truncate(victim, size)
    name.symlink_to(victim)


def a_hard_link(name: Path, victim: Path, size: int) -> None:
    os.truncate(victim, size)
    os.chmod(victim, 0o600)
    os.link(victim, name)


def a_fifo(name: Path, victim: Path, size: int) -> None:
    os.mkfifo(name, 0o666)
    os.chown(name, UNPRIVILEGED, UNPRIVILEGED)


@ROOT_ONLY
@pytest.mark.parametrize(
    "plant", [a_file, a_file_of_ours_that_is_open_to_others, a_link, a_hard_link, a_fifo]
)
def test_what_was_planted_in_place_of_a_draft_is_not_written(
    shared: Path, waystage: Waystage, plant: Callable[[Path, Path, int], None]
) -> None:
    copy = shared / "copy"
    content = make_secret(shared / "tree/secret")
    draft = interrupted(shared / "tree", copy)
    about = draft.stat()
    assert (about.st_mode & 0o7777, about.st_uid, about.st_nlink) == (0o600, 0, 1)
    draft.rename(shared / "aside")
    plant(draft, shared / "victim", len(content))
    # Held open, its inode number is not given to another file.
    held = os.open(draft, os.O_PATH | os.O_NOFOLLOW)
    planted, before = os.fstat(held).st_ino, (shared / "victim").read_bytes()
    ran = waystage("copy", str(shared / "tree"), str(copy), "--verify", "--json")
    assert ran.code == 0, ran
    assert ran.json["counts"]["resumed_bytes"] == 0
    made = (copy / "secret").stat()
    os.close(held)
    assert (made.st_mode & 0o7777, made.st_uid, made.st_ino == planted) == (0o600, 0, False)
    assert (copy / "secret").read_bytes() == content
    assert (shared / "victim").read_bytes() == before
    assert leftovers(copy) == []


@ROOT_ONLY
def test_what_is_ours_still_is_gone_on_with(shared: Path, waystage: Waystage) -> None:
    content = make_secret(shared / "tree/secret")
    draft = interrupted(shared / "tree", shared / "copy")
    ran = waystage("copy", str(shared / "tree"), str(shared / "copy"), "--json")
    assert ran.json["counts"]["resumed_bytes"] >= EXTENT
    assert (shared / "copy/secret").read_bytes() == content
    shutil.rmtree(shared / "copy")
    (shared / "copy").mkdir()
    assert interrupted(shared / "tree", shared / "copy").name != draft.name, "names are not to be guessed"


@ROOT_ONLY
@pytest.mark.parametrize("options", [(), ("--restart",)], ids=["resuming", "anew"])
@pytest.mark.parametrize("what", ["folder", "file", "link", "hard link", "open"])
def test_a_planted_journal_is_neither_believed_nor_written(
    shared: Path, waystage: Waystage, what: str, options: tuple[str, ...]
) -> None:
    (shared / "tree").mkdir()
    (shared / "tree/file").write_text("x")
    folder = shared / "copy/.waystage-copy"
    journal, victim = folder / "journal", shared / "victim"
    folder.mkdir(mode=0o700)
    if what == "link":
        journal.symlink_to(victim)
    elif what == "hard link":
        victim.write_bytes(b"")
        os.link(victim, journal)
    else:
        journal.write_bytes(b"")
        journal.chmod(0o666 if what == "open" else 0o600)
    if what in ("folder", "file"):
        os.chown(folder if what == "folder" else journal, UNPRIVILEGED, UNPRIVILEGED)
    before = (victim.read_bytes(), journal.lstat().st_size)
    ran = waystage("copy", str(shared / "tree"), str(shared / "copy"), *options)
    assert (ran.code, "not of a copy by this user" in ran.err) == (3, True), ran
    assert (victim.read_bytes(), journal.lstat().st_size) == before
    assert not (shared / "copy/file").exists()


@ROOT_ONLY
def test_no_file_is_open_to_others_before_it_has_its_name(shared: Path) -> None:
    (shared / "tree").mkdir()
    (shared / "tree/large").write_bytes(b"s" * (EXTENT + 1))
    (shared / "tree/large").chmod(0o666)
    os.chown(shared / "tree/large", UNPRIVILEGED, UNPRIVILEGED)
    command = [sys.executable, "-m", "waystage", "copy", str(shared / "tree"), str(shared / "copy"), "-q"]
    process = subprocess.Popen([*command, "--bandwidth-limit", "1M", "--workers", "1"])
    try:
        wait_until(lambda: list((shared / "copy").glob(".waystage-copy*.part")), process)
        (draft,) = (shared / "copy").glob(".waystage-copy*.part")
        about = draft.stat()
        assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o600, 0)
    finally:
        process.kill()
        process.wait()
