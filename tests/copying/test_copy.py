"""`waystage copy`: what arrives is what was there, and only whole; a second copy moves only what changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from copying_trees import add_socket, leftovers, snapshot
from harness import IMPORTED_LATER, Waystage, wait_until


def test_everything_arrives_as_it_was(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert snapshot(tmp_path / "copy") == snapshot(tree)
    assert leftovers(tmp_path / "copy") == []
    assert (tmp_path / "copy/a/holes").stat().st_blocks * 512 < 1_000_000
    counts = ran.json["counts"]
    assert counts["hard_links"] == 2
    assert counts["bytes"] < 100_000, "holes are not data"
    checked = waystage("verify", "tree", "copy", "--json")
    assert (checked.code, checked.json["changed"], checked.json["errors"]) == (0, [], [])


@pytest.mark.parametrize(
    "options", [("--verify",), ("--verify", "--from-storage"), ("--fsync", "each"), ("--fsync", "end")]
)
def test_reading_back_and_forcing_out_change_nothing_of_the_copy(
    tree: Path, tmp_path: Path, waystage: Waystage, options: tuple[str, ...]
) -> None:
    ran = waystage("copy", "tree", "copy", "--json", *options)
    assert ran.code == 0, ran.out
    assert snapshot(tmp_path / "copy") == snapshot(tree)
    counts = ran.json["counts"]
    assert counts["verified"] == (counts["files"] if "--verify" in options else 0)


def test_a_second_copy_moves_only_what_changed(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    first = waystage("copy", "tree", "copy", "--json").json["counts"]
    again = waystage("copy", "tree", "copy", "--json").json["counts"]
    assert (again["objects"], again["files"], again["bytes"], again["mended"]) == (0, 0, 0, 0)
    assert again["same"] == first["files"] + first["hard_links"]

    (tree / "a/secret").write_bytes(b"another")
    os.setxattr(tree / "a/program", "user.new", b"1")
    os.removexattr(tree / "a/b", "user.of-directory")
    (tree / "a/nothing").chmod(0o600)
    (tree / "a/dangling").unlink()
    (tree / "a/dangling").symlink_to("elsewhere")
    (tree / "first name").unlink()
    (tree / "first name").write_text("a separate file now")
    (tmp_path / "copy/not from here").write_text("stays")
    changed = waystage("copy", "tree", "copy", "--json").json["counts"]
    assert (changed["files"], changed["mended"], changed["symlinks"]) == (2, 2, 1)
    there = snapshot(tmp_path / "copy", times=False)
    assert there.pop(b"not from here")
    # The copy still has the three names of one file as they were, but for the one that is a separate file now.
    assert there == snapshot(tree, times=False)


@pytest.mark.parametrize(
    ("update", "sent"),
    [("changed", {"other size", "other time", "older"}), ("newer", {"other size", "other time"}), ("missing", set()),
     ("content", {"other size", "other content"}), ("always", {"other size", "other time", "older", "other content", "same"})],
)  # fmt: skip
def test_existing_files_are_copied_again_as_asked(
    tmp_path: Path, waystage: Waystage, update: str, sent: set[str]
) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    for root in (tree, copy):
        root.mkdir()
        for name in ("other size", "other time", "older", "other content", "same"):
            (root / name).write_text("the same")
            os.utime(root / name, ns=(0, 10**18))
    (tree / "other size").write_text("of another size")
    os.utime(tree / "other time", ns=(0, 10**18 + 1))
    os.utime(tree / "older", ns=(0, 10**18 - 1))
    (tree / "other content").write_text("the SAME")
    os.utime(tree / "other content", ns=(0, 10**18))
    before = {p.name: p.stat().st_ino for p in copy.iterdir()}
    ran = waystage("copy", "tree", "copy", "--update", update, "--json")
    assert ran.code == 0
    assert {name for name, inode in before.items() if (copy / name).stat().st_ino != inode} == sent


def test_one_file_is_copied_under_its_own_or_another_name(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "file").write_text("content")
    os.utime(tmp_path / "file", ns=(0, 77))
    (tmp_path / "folder").mkdir()
    assert waystage("copy", "file", "other").code == 0
    assert waystage("copy", "file", "folder").code == 0
    for made in (tmp_path / "other", tmp_path / "folder/file"):
        assert (made.read_text(), made.stat().st_mtime_ns) == ("content", 77)
    assert leftovers(tmp_path) == []


def test_patterns_choose(tmp_path: Path, waystage: Waystage) -> None:
    for name in ("a/keep.h5", "a/drop.h5", "b/keep.txt", "c/deep/keep.h5", ".git/keep.h5"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).touch()
    ran = waystage("copy", "tree", "copy", "-i", "*.h5", "-x", "drop*", "-x", "/.git", "--json")
    made = sorted(str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*"))
    assert made == ["a", "a/keep.h5", "c", "c/deep", "c/deep/keep.h5"]
    assert ran.json["counts"]["excluded"] == 3


def test_a_dry_run_says_what_and_does_nothing(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    ran = waystage("copy", "tree", "copy", "--dry-run", "--json")
    assert ran.code == 0
    assert not (tmp_path / "copy").exists()
    by_path = {each["path"]: each for each in ran.json["would_copy"]}
    assert by_path["a/secret"] == {"path": "a/secret", "path_base64": None, "kind": "file", "bytes": 6}
    assert (
        [each["kind"] for each in by_path.values()].count("hard link")
        == ran.json["counts"]["hard_links"]
        == 2
    )
    waystage("copy", "tree", "copy")
    (tree / "a/secret").write_text("another")
    before = snapshot(tmp_path / "copy")
    ran = waystage("copy", "tree", "copy", "--dry-run", "--json")
    assert [each["path"] for each in ran.json["would_copy"]] == ["a/secret"]
    assert ran.json["counts"]["bytes"] == 7
    assert snapshot(tmp_path / "copy") == before


def test_ends_that_make_no_sense_are_refused(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("tree")
    refused = [
        (("tree", "tree/below"), 3, "never ends"),
        (("tree", "tree/new"), 3, "never ends"),
        (("tree", "link"), 3, "never ends"),
        (("tree/below", "tree"), 3, "is in"),
        (("file", "file"), 3, "the same file"),
        (("tree", "file"), 3, "no directory"),
        (("absent", "new"), 3, "No such file"),
        (("tree", "no/parent"), 1, "make the directory"),
        (("host:tree", "user@host:copy"), 2, "both remote"),
        (("tree", "new", "--from-storage"), 2, "--verify"),
        (("tree", "new", "--bandwidth-limit", "fast"), 2, "no rate"),
    ]
    for arguments, code, word in refused:
        ran = waystage("copy", *arguments)
        assert (ran.code, word in ran.err) == (code, True), (arguments, ran)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link", "tree"]
    assert waystage("copy", "tree", "./with:colon").code == 0


def test_links_at_the_destination_are_never_followed(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree/a").mkdir(parents=True)
    (tmp_path / "tree/a/file").write_text("from here")
    (tmp_path / "tree/name").write_text("from here")
    (tmp_path / "outside").mkdir()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/a").symlink_to(tmp_path / "outside")
    (tmp_path / "copy/name").symlink_to(tmp_path / "victim")
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 8
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "copy/name").read_text() == "from here"
    assert {p["path"] for p in ran.json["problems"]} == {"a", "a/file"}


def test_another_sort_at_the_destination_is_said_and_the_rest_copied(
    tmp_path: Path, waystage: Waystage
) -> None:
    for name in ("file", "other"):
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_text(name)
    (tmp_path / "tree/folder").mkdir()
    (tmp_path / "copy/file").mkdir(parents=True)
    (tmp_path / "copy/folder").write_text("x")
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 8
    assert {p["path"] for p in ran.json["problems"]} == {"file", "folder"}
    assert (tmp_path / "copy/other").read_text() == "other"


def test_sockets_are_left_out_and_said(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree").mkdir()
    add_socket(tmp_path / "tree/s")
    ran = waystage("copy", "tree", "copy", "--json")
    assert ran.code == 0
    assert [(p["path"], p["kind"]) for p in ran.json["problems"]] == [("s", "skipped")]


def test_a_terabyte_of_holes_takes_no_room(tmp_path: Path, waystage: Waystage) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with open(tree / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(700_000_000_000)
        file.write(b"here")
    ran = waystage("copy", "tree", "copy", "--verify", "--json")
    assert ran.code == 0, ran
    made = tmp_path / "copy/sparse"
    assert (made.stat().st_size, made.stat().st_blocks * 512 < 1 << 20) == (1 << 40, True)
    with open(made, "rb") as file:
        file.seek(699_999_999_999)
        assert file.read(6) == b"\0here\0"


@pytest.mark.parametrize("options", [(), ("--verify",)])
def test_large_files_arrive_whichever_way_their_extents_go(
    tmp_path: Path, waystage: Waystage, options: tuple[str, ...]
) -> None:
    # With one worker the third extent is the first with direct I/O; the fourth has an unaligned end.
    block = os.urandom(1 << 20)
    parts = [number.to_bytes(8, "big") + block[8:] for number in range(100)] + [block[:4321]]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/large").write_bytes(b"".join(parts))
    ran = waystage("copy", "tree", "copy", "--workers", "1", "--json", *options)
    assert ran.code == 0, ran
    assert ran.json["counts"]["objects"] == 4
    with open(tmp_path / "copy/large", "rb") as made:
        for number, part in enumerate(parts):
            assert made.read(len(part)) == part, number
        assert made.read() == b""


def test_the_limit_limits(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(10):
        (tmp_path / f"tree/{number}").write_bytes(b"x" * 200_000)
    ran = waystage("copy", "tree", "copy", "--bandwidth-limit", "2MB", "--json")
    assert ran.code == 0
    # The last of ten pieces waits for the nine before it.
    assert ran.json["seconds"] >= 0.9


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="waystage-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_what_a_user_may_not_read_is_said_and_the_rest_copied(open_folder: Path) -> None:
    tree, copy = open_folder / "tree", open_folder / "copy"
    tree.mkdir()
    copy.mkdir(mode=0o777)
    copy.chmod(0o777)
    (tree / "open").write_text("open")
    (tree / "closed").write_text("closed")
    (tree / "closed").chmod(0)
    (tree / "program").write_text("x")
    (tree / "program").chmod(0o4755)
    # As root, the tests may use a Python that others cannot reach: rights are dropped after the start.
    code = (
        f"import os, sys, waystage._native, waystage.catalog.store, waystage.cli.copy, {IMPORTED_LATER}\n"
        "from waystage.cli.main import main\n"
        "if os.geteuid() == 0:\n    os.setgroups([])\n    os.setgid(65534)\n    os.setuid(65534)\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "copy", str(tree), str(copy), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert ran.returncode == 8, ran
    assert ("closed", "error") in {(p["path"], p["kind"]) for p in json.loads(ran.stdout)["problems"]}
    assert (copy / "open").read_text() == "open"
    if os.geteuid() == 0:
        # The rights of its owner do not become the rights of the user who copied it.
        assert (copy / "program").stat().st_mode & 0o7777 == 0o755
        assert "set-user-id" in ran.stdout


def test_two_copies_to_one_place_do_not_meet(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"x" * 3_000_000)
    slow = subprocess.Popen(
        [sys.executable, "-m", "waystage", "copy", "tree", "copy", "--bandwidth-limit", "50k", "-q"],
        cwd=tmp_path,
    )
    try:
        journal = tmp_path / "copy/.waystage-copy/journal"
        # It is locked before anything is written to it.
        wait_until(lambda: journal.exists() and journal.stat().st_size > 0, slow)
        ran = waystage("copy", "tree", "copy")
        assert (ran.code, "another process" in ran.err) == (6, True)
    finally:
        slow.kill()
        slow.wait()


def test_a_dry_run_of_the_disk_reads_what_would_be_copied(
    tree: Path, tmp_path: Path, waystage: Waystage
) -> None:
    waystage("copy", "tree", "copy", "-x", "secret", "-x", "program")
    before = snapshot(tmp_path / "copy")
    ran = waystage("copy", "tree", "copy", "--dry-run=disk", "--json")
    assert ran.code == 0, ran
    assert (ran.json["dry_run"], ran.json["counts"]["files"]) == ("disk", 2)
    assert snapshot(tmp_path / "copy") == before
    os.truncate(tree / "a/secret", 1 << 40)
    refused = waystage("copy", "tree", "copy", "--dry-run=network")
    assert refused.code == 2 and "use --dry-run=disk" in refused.err
    said = waystage("copy", "tree", "copy", "-n")
    assert "a/secret\n" in said.out and "would copy 1.1 TB" in said.out
