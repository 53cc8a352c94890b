"""What a copy keeps, counts and leaves behind: links of all sorts, far times, directories, names like its own, leftovers."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from copying_trees import leftovers, snapshot
from harness import Waystage, wait_until


def test_hard_links_of_every_sort_stay_links(tmp_path: Path, waystage: Waystage) -> None:
    tree = tmp_path / "tree"
    (tree / "z").mkdir(parents=True)
    (tree / "link").symlink_to("nowhere")
    os.mkfifo(tree / "fifo", 0o640)
    (tree / "file").write_text("x")
    names = ["link", "fifo", "file"]
    if os.geteuid() == 0:
        os.mknod(tree / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        names.append("device")
    for name in names:
        os.link(tree / name, tree / "z" / name, follow_symlinks=False)
        os.link(tree / name, tree / f"second {name}", follow_symlinks=False)
    ran = waystage("copy", "tree", "copy", "--json")
    assert (ran.code, ran.json["counts"]["lost"]) == (0, 0)
    assert ran.json["counts"]["hard_links"] == 2 * len(names)
    for name in names:
        inodes = {os.lstat(tmp_path / "copy" / each).st_ino for each in (name, f"z/{name}", f"second {name}")}
        assert len(inodes) == 1, name
        assert os.lstat(tmp_path / "copy" / name).st_nlink == 3
    again = waystage("copy", "tree", "copy", "--json").json["counts"]
    assert (again["hard_links"], again["symlinks"], again["specials"]) == (0, 0, 0)
    alone = waystage("copy", "tree", "alone", "--no-hard-links", "--json")
    assert alone.json["counts"]["hard_links"] == 0
    assert all(os.lstat(tmp_path / "alone" / name).st_nlink == 1 for name in names)


FAR = [-9_500_000_000, -2_100_000_000, 9_223_372_037, 10_413_792_000]
"""Seconds since 1970: before 1677, before 1904, the first that 64 bits of nanoseconds do not hold, the year 2300."""


@pytest.mark.parametrize("seconds", FAR)
def test_times_are_kept_as_far_as_the_file_system_knows_them(
    tmp_path: Path, waystage: Waystage, seconds: int
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_text("x")
    (tree / "link").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    wanted = seconds * 10**9 + 123_456_789
    for name in ("sub/file", "link", "fifo", "sub", ""):
        os.utime(tree / name, ns=(wanted, wanted), follow_symlinks=False)
    if os.lstat(tree / "sub/file").st_mtime_ns != wanted:
        pytest.skip("this file system does not know such times")
    ran = waystage("copy", "tree", "copy", "--json")
    assert (ran.code, ran.json["counts"]["lost"]) == (0, 0)
    assert snapshot(tmp_path / "copy") == snapshot(tree)
    assert os.lstat(tmp_path / "copy/sub/file").st_mtime_ns == wanted
    again = waystage("copy", "tree", "copy", "--json").json["counts"]
    assert (again["files"], again["same"]) == (0, 1)


def test_directories_are_counted_one_by_one(tmp_path: Path, waystage: Waystage) -> None:
    for number in range(200):
        folder = tmp_path / f"tree/{number % 20}/{number}/below"
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    for copy in ("one", "two", "three"):
        ran = waystage("copy", "tree", copy, "--workers", "16", "--json")
        assert ran.json["counts"]["directories"] == 20 + 200 + 200
    assert waystage("copy", "tree", "one", "--json").json["counts"]["directories"] == 0
    dry = waystage("copy", "tree", "four", "--dry-run", "--json").json
    assert dry["counts"]["directories"] == 420


def test_a_slash_at_the_end_means_a_directory(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "there").mkdir()
    (tmp_path / "other").write_text("mine")
    for absent in ("missing/new/", "new/.", "other/"):
        ran = waystage("copy", "file", absent)
        assert ran.code in (1, 3) and "Traceback" not in ran.err, ran
    assert "Not a directory" in waystage("copy", "file", "other/").err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other", "there"]
    assert (tmp_path / "other").read_text() == "mine"
    assert waystage("copy", "file", "there/").code == 0
    assert (tmp_path / "there/file").read_text() == "x"
    assert waystage("copy", "file", "made//").code == 0
    assert (tmp_path / "made/file").read_text() == "x"
    assert waystage("copy", "there", "tree/").code == 0
    assert (tmp_path / "tree/file").read_text() == "x"


def test_names_like_the_copy_s_own_are_copied_and_its_own_are_named(
    tmp_path: Path, waystage: Waystage
) -> None:
    tree = tmp_path / "tree"
    kept = [
        ".waystage-copying",
        ".waystage-copy.txt",
        ".waystage-copy-notes.part",
        "sub/.waystage-copy/mine",
        ".waystage-copy-and/deep/file",
    ]
    part = ".waystage-copy-0123456789abcdef-large-0123456789abcdef.part"
    old = "sub/.waystage-copy-0123456789abcdef-3.part"
    own = [part, old, "sub/deeper/.waystage-copy/journal", ".waystage-copy/journal"]
    for name in [*kept, *own]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("waystage-copy-journal 2\n" if name.endswith("journal") else "x")
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 0, ran
    skipped = {problem["path"] for problem in ran.json["problems"] if problem["kind"] == "skipped"}
    assert skipped == {part, old, "sub/deeper/.waystage-copy", ".waystage-copy"}
    copied = {os.path.relpath(p, tmp_path / "copy") for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert copied == set(kept)
    listed = waystage("copy", "tree", "listed", "--files-from", "-", "--json", input=f"{part}\n{kept[0]}\n")
    assert [problem["path"] for problem in listed.json["problems"]] == [part]


def test_a_name_that_the_journal_needs_is_said(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree/.waystage-copy").mkdir(parents=True)
    (tmp_path / "tree/.waystage-copy/mine").write_text("x")
    (tmp_path / "tree/file").write_text("x")
    ran = waystage("copy", "tree", "copy", "--json")
    assert (ran.code, [p["path"] for p in ran.json["problems"]]) == (8, [".waystage-copy"])
    assert "another name" in ran.json["problems"][0]["text"]
    assert (tmp_path / "copy/file").exists()


def cut_to_nothing(data: bytes) -> bytes:
    return b""


def cut_after_the_first_record(data: bytes) -> bytes:
    at = len(b"waystage-copy-journal 2\n")
    return data[: at + 8 + int.from_bytes(data[at : at + 4], "little")]


def flipped(data: bytes) -> bytes:
    return data[:30] + bytes([data[30] ^ 8]) + data[31:]


def overwritten(data: bytes) -> bytes:
    return b"something else"


def of_an_older_version(data: bytes) -> bytes:
    return b"waystage-copy-journal 1\n" + data[24:]


@pytest.mark.parametrize(
    "damage", [cut_to_nothing, cut_after_the_first_record, flipped, overwritten, of_an_older_version]
)
def test_no_leftovers_stay_after_a_damaged_journal(tmp_path: Path, waystage: Waystage, damage) -> None:  # type: ignore[no-untyped-def]
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    content = random.Random(1).randbytes(1 << 20) * 33
    for name in ("one/large", "two/deep/large"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_bytes(content)
    command = [sys.executable, "-m", "waystage", "copy", "tree", "copy", "--workers", "2", "-q"]
    process = subprocess.Popen([*command, "--bandwidth-limit", "1M"], cwd=tmp_path)
    wait_until(lambda: len(list(copy.rglob("*.part"))) == 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # What a copy to one file in the same directory has in progress is that copy's.
    other = copy / "one/.waystage-copy-00000000deadbeef-large-0123456789abcdef.part"
    other.write_text("x")
    journal = copy / ".waystage-copy/journal"
    journal.write_bytes(damage(journal.read_bytes()))
    ran = waystage("copy", "tree", "copy", "--json")
    if ran.code == 3:
        ran = waystage("copy", "tree", "copy", "--restart", "--json")
    assert ran.code == 0, ran
    assert leftovers(copy) == [os.fsencode(other)]
    other.unlink()
    assert snapshot(copy, times=False) == snapshot(tree, times=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs root")
def test_no_device_fifo_or_socket_in_a_tree_makes_room(tmp_path: Path, waystage: Waystage) -> None:
    names = ["device", "fifo"]
    for root in ("tree", "copy"):
        (tmp_path / root).mkdir()
    os.mknod(tmp_path / "copy/device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo(tmp_path / "copy/fifo")
    for name in names:
        (tmp_path / "tree" / name).write_text("x")
    before = {name: os.lstat(tmp_path / "copy" / name).st_ino for name in names}
    for step in ("files", "links", "devices", "hard links"):
        for name in names:
            (tmp_path / "tree" / name).unlink()
            if step == "files":
                (tmp_path / "tree" / name).write_text("x")
            elif step == "links":
                (tmp_path / "tree" / name).symlink_to("nowhere")
            elif step == "devices":
                os.mknod(tmp_path / "tree" / name, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        if step == "hard links":
            (tmp_path / "tree/a").write_text("x")
            for name in names:
                os.link(tmp_path / "tree/a", tmp_path / "tree" / name)
        ran = waystage("copy", "tree", "copy", "--json")
        assert (ran.code, {p["path"] for p in ran.json["problems"]}) == (8, set(names)), (step, ran)
        assert {name: os.lstat(tmp_path / "copy" / name).st_ino for name in names} == before
    # The same device with other rights is made right where it is.
    (tmp_path / "tree/device").unlink()
    os.mknod(tmp_path / "tree/device", stat.S_IFCHR | 0o640, os.makedev(1, 3))
    waystage("copy", "tree", "copy")
    about = os.lstat(tmp_path / "copy/device")
    assert (about.st_ino, stat.S_IMODE(about.st_mode)) == (before["device"], 0o640)
