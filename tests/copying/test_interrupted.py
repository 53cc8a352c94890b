"""A copy that is killed, interrupted or runs out of room: no half file under its name, and the same command goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from copying_trees import EXTENT, leftovers, make_everything, make_stalling, snapshot
from harness import WAIT_S, Waystage, wait_until


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "waystage", "copy", "tree", "copy", "--json", *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_large_file_goes_on_at_the_extent_it_had_come_to(
    tmp_path: Path, waystage: Waystage, ending: signal.Signals
) -> None:
    content = make_stalling(tmp_path / "tree/sub/large", 3.5)
    process = start(tmp_path, "--bandwidth-limit", "1M", "--workers", "1")
    journal = tmp_path / "copy/.waystage-copy/journal"
    # A record of an extent has 33 bytes; the records before it are longer than the paths in them.
    wait_until(
        lambda: (
            journal.exists() and journal.stat().st_size > 2 * len(str(tmp_path)) and _extents(journal) >= 1
        ),
        process,
    )
    process.send_signal(ending)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == (130 if ending != signal.SIGKILL else -9)
    assert not (tmp_path / "copy/sub/large").exists()
    had = _extents(journal)
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 0, ran
    assert (tmp_path / "copy/sub/large").read_bytes() == content
    counts = ran.json["counts"]
    assert (counts["resumed"], counts["objects"]) == (1, 4 - had)
    assert counts["resumed_bytes"] == had * EXTENT
    assert leftovers(tmp_path / "copy") == []


def _extents(journal: Path) -> int:
    """Records of extents: 25 bytes of payload, of kind 4, that come after a length and a hash."""
    data = journal.read_bytes()
    at, count = len(b"waystage-copy-journal 1\n"), 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 8 + length > len(data):
            break
        count += data[at + 8] == 4
        at += 8 + length
    return count


def test_killed_at_any_moment_nothing_is_half_lost_or_left_over(tmp_path: Path, waystage: Waystage) -> None:
    make_everything(tmp_path / "tree")
    for number in range(300):
        folder = tmp_path / f"tree/many/{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).write_bytes(bytes([number % 256]) * (1000 + 37 * number))
    whole = snapshot(tmp_path / "tree")
    chance, journal = random.Random(7), tmp_path / "copy/.waystage-copy/journal"
    for _ in range(6):
        process = start(tmp_path, "--bandwidth-limit", "1M")
        # A copy that has nothing left to do is over before its journal is seen.
        wait_until(lambda over=process: journal.exists() or over.poll() is not None)
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.communicate()
        # Every entry with a name of the source is the source's.
        for path, (mode, _, _, _, content, _, _) in snapshot(tmp_path / "copy").items():
            if b".waystage-copy" not in path and mode & 0o170000 == 0o100000:  # type: ignore[operator]
                assert content == whole[path][4], path
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 0, ran
    assert snapshot(tmp_path / "copy") == whole
    assert leftovers(tmp_path / "copy") == []


def test_a_journal_of_another_copy_is_not_taken_over(tmp_path: Path, waystage: Waystage) -> None:
    make_stalling(tmp_path / "tree/large", 2)
    (tmp_path / "other").mkdir()
    process = start(tmp_path, "--bandwidth-limit", "1M")
    wait_until(lambda: any((tmp_path / "copy").glob(".waystage-copy*.part")), process)
    process.kill()
    process.communicate()
    ran = waystage("copy", "other", "copy")
    assert (ran.code, "interrupted copy of local:" in ran.err) == (3, True)
    journal = tmp_path / "copy/.waystage-copy/journal"
    kept = journal.read_bytes()
    journal.write_bytes(b"something else")
    assert waystage("copy", "tree", "copy").code == 3
    journal.write_bytes(kept)
    assert waystage("copy", "other", "copy", "--restart").code == 0
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_source_that_changed_after_the_crash_is_copied_anew(tmp_path: Path, waystage: Waystage) -> None:
    make_stalling(tmp_path / "tree/large", 2)
    process = start(tmp_path, "--bandwidth-limit", "1M", "--workers", "1")
    journal = tmp_path / "copy/.waystage-copy/journal"
    wait_until(lambda: journal.exists() and _extents(journal) >= 1, process)
    process.kill()
    process.communicate()
    with open(tmp_path / "tree/large", "r+b") as file:
        file.write(b"other beginning")
    ran = waystage("copy", "tree", "copy", "--json")
    assert (ran.code, ran.json["counts"]["resumed_bytes"]) == (0, 0)
    assert (tmp_path / "copy/large").read_bytes() == (tmp_path / "tree/large").read_bytes()
    assert leftovers(tmp_path / "copy") == []


def test_a_large_file_that_changes_meanwhile_is_reported_and_fixed_by_the_next_copy(
    tmp_path: Path, waystage: Waystage
) -> None:
    for grows in (True, False):
        make_stalling(tmp_path / "tree/large", 1.4)
        process = start(tmp_path, "--bandwidth-limit", "2M", "--workers", "1")
        wait_until(lambda: any((tmp_path / "copy").glob(".waystage-copy*large*.part")), process)
        if grows:
            with open(tmp_path / "tree/large", "ab") as file:
                file.write(b"more")
        else:
            os.truncate(tmp_path / "tree/large", 5)
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 8
        assert [p["kind"] for p in json.loads(out)["problems"]] == ["changed"]
        assert leftovers(tmp_path / "copy") == []
        assert waystage("copy", "tree", "copy").code == 0
        assert (tmp_path / "copy/large").read_bytes() == (tmp_path / "tree/large").read_bytes()


def test_a_tree_that_is_pulled_from_under_the_copy_is_said(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / f"tree/{number:02}").write_bytes(b"x" * 100_000)
    (tmp_path / "outside").write_text("not in the tree")
    process = start(tmp_path, "--bandwidth-limit", "1M", "--workers", "1")
    wait_until(lambda: any((tmp_path / "copy").glob("[0-9]*")), process)
    # The last in the order of the copy, that of inodes.
    with os.scandir(tmp_path / "tree") as entries:
        last = [entry.name for entry in sorted(entries, key=os.DirEntry.inode)][-4:]
    gone, folder, link, grown = last
    for name in (gone, folder, link):
        (tmp_path / "tree" / name).unlink()
    (tmp_path / "tree" / folder).mkdir()
    (tmp_path / "tree" / link).symlink_to(tmp_path / "outside")
    with open(tmp_path / "tree" / grown, "ab") as file:
        file.write(b"grown")
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 8
    said = {p["path"]: p["kind"] for p in json.loads(out)["problems"]}
    assert said == {gone: "vanished", folder: "changed", link: "changed"}
    for name in (gone, folder, link):
        assert not os.path.lexists(tmp_path / "copy" / name)
    # It changed between the walk and its turn: copied as it is now.
    assert (tmp_path / "copy" / grown).read_bytes() == (tmp_path / "tree" / grown).read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB at `disk`."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_a_full_destination_is_said_and_with_room_the_copy_goes_on(
    tmp_path: Path, small_disk: Path, waystage: Waystage
) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").write_bytes(bytes([number]) * 700_000)
    ran = waystage("copy", "tree", str(small_disk / "copy"))
    assert (ran.code, "No space left on device" in ran.err, "make room" in ran.err) == (1, True, True)
    whole = {p.name for p in (small_disk / "copy").iterdir()} - {".waystage-copy"}
    assert whole, "what fitted is there"
    assert all((small_disk / "copy" / name).stat().st_size == 700_000 for name in whole)
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    again = waystage("copy", "tree", str(small_disk / "copy"), "--json")
    assert again.code == 0
    assert again.json["counts"]["files"] == 20 - len(whole)
    assert snapshot(small_disk / "copy") == snapshot(tmp_path / "tree")


def test_a_read_only_destination_is_said_at_once(
    tmp_path: Path, small_disk: Path, waystage: Waystage
) -> None:
    (tmp_path / "tree").mkdir()
    (small_disk / "copy").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for destination in ("copy", "new"):
        ran = waystage("copy", "tree", str(small_disk / destination))
        assert (ran.code, "Read-only file system" in ran.err) == (1, True)
