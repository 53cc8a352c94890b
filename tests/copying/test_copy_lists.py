"""`waystage copy --files-from`: what a list names is copied with the directories on its way, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from copying_trees import ODD_NAMES, leftovers, make_stalling, snapshot
from harness import Waystage, wait_until
from remote_copy_support import parts_written


def paths(root: Path) -> set[bytes]:
    return set(snapshot(root)) - {b""}


def test_what_is_named_is_copied_and_what_is_in_named_directories(
    tree: Path, tmp_path: Path, waystage: Waystage
) -> None:
    (tmp_path / "list").write_text(
        "./a/b/c/second name\n\na/secret\na/dangling\nempty/\na/fifo\nfirst name\n"
    )
    ran = waystage("copy", "tree", "copy", "--files-from", "list", "--json")
    assert ran.code == 0, ran
    there = snapshot(tmp_path / "copy")
    wanted = {b"a", b"a/b", b"a/b/c", b"a/b/c/second name", b"a/secret", b"a/dangling", b"empty", b"a/fifo"}
    assert set(there) - {b""} == wanted | {b"first name"}
    whole = snapshot(tree)
    assert all(there[path] == whole[path] for path in wanted - {b"a/b/c/second name"})
    assert ran.json["counts"]["hard_links"] == 1
    (tmp_path / "list").write_text("a\na/b\n")
    assert waystage("copy", "tree", "all-of-a", "--files-from", "list").code == 0
    assert paths(tmp_path / "all-of-a") == {b"a"} | {path for path in paths(tree) if path.startswith(b"a/")}
    (tmp_path / "list").write_text(".\na/secret\n")
    assert waystage("copy", "tree", "all", "--files-from", "list").code == 0
    assert snapshot(tmp_path / "all") == snapshot(tree)


def test_names_may_be_of_any_bytes_where_they_end_with_a_nul(tree: Path, tmp_path: Path) -> None:
    names = b"".join(b"./a/" + name + b"\0" for name in ODD_NAMES)
    words = ("copy", "tree", "copy", "--files-from", "-", "-0", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "waystage", *words],
        input=names,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done
    assert paths(tmp_path / "copy") == {b"a"} | {b"a/" + name for name in ODD_NAMES}


def test_patterns_leave_out_what_is_named(tree: Path, tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "list").write_text("a/secret\na/program\na/b\n")
    words = ("copy", "tree", "copy", "--files-from", "list", "-x", "/a/b/c", "-i", "se*", "--json")
    ran = waystage(*words)
    assert ran.code == 0
    assert {path for path in paths(tmp_path / "copy") if path != b"a/b"} == {b"a", b"a/secret"}


def test_what_is_not_there_is_said_and_the_rest_is_copied(
    tree: Path, tmp_path: Path, waystage: Waystage
) -> None:
    (tmp_path / "list").write_text("a/secret\na/none\nno/where\na/secret/below\na/b/out/etc\n")
    ran = waystage("copy", "tree", "copy", "--files-from", "list", "--json")
    assert ran.code == 8
    problems = {problem["path"]: problem["text"] for problem in ran.json["problems"]}
    not_there = "is in the list and not at the source"
    assert {path for path, text in problems.items() if text == not_there} == {
        "a/none",
        "no/where",
        "a/secret/below",
    }
    assert "symbolic link on the way" in problems["a/b/out/etc"]
    assert paths(tmp_path / "copy") == {b"a", b"a/secret"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/secret\n../tree/a\n", 'list: line 2: "../tree/a" leads out with `..`'),
        ("/etc/passwd\n", 'list: line 1: "/etc/passwd" begins with a slash'),
        ("a/b\nfirst name\n./a//b/\n", 'list: line 3: "a/b" is there a second time, after line 1'),
        ("a\0b\0", "give --null"),
    ],
)
def test_a_list_that_cannot_be_taken_is_refused_before_anything_is_copied(
    tree: Path, tmp_path: Path, waystage: Waystage, text: str, said: str
) -> None:
    (tmp_path / "list").write_text(text)
    ran = waystage("copy", "tree", "copy", "--files-from", "list")
    assert ran.code == 3 and said in ran.err and ran.err.count("\n") == 1, ran
    assert not (tmp_path / "copy").exists()


def test_a_list_without_a_directory_and_nul_without_a_list_make_no_sense(
    tree: Path, tmp_path: Path, waystage: Waystage
) -> None:
    (tmp_path / "list").write_text("secret\n")
    ran = waystage("copy", "tree/a/secret", "copy", "--files-from", "list")
    assert ran.code == 3 and "is a file, and a list names entries of a directory" in ran.err
    assert waystage("copy", "tree", "copy", "-0").code == 2


def test_an_interrupted_copy_of_a_list_goes_on(tmp_path: Path, waystage: Waystage) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("large", "other"):
        make_stalling(tree / name, 2)
    (tmp_path / "list").write_text("large\n")
    words = ("copy", tree, tmp_path / "copy", "--files-from", tmp_path / "list")
    process = subprocess.Popen(
        [sys.executable, "-m", "waystage", *map(str, words), "--bandwidth-limit", "1M"], cwd=tmp_path
    )
    journal = tmp_path / "copy/.waystage-copy/journal"
    wait_until(lambda: parts_written(journal) > 0, process, "a part on the disk")
    process.send_signal(signal.SIGKILL)
    process.wait()
    ran = waystage(*map(str, words), "--json")
    assert ran.code == 0 and ran.json["counts"]["resumed"] == 1, ran
    assert (tmp_path / "copy/large").read_bytes() == (tree / "large").read_bytes()
    assert paths(tmp_path / "copy") == {b"large"} and leftovers(tmp_path / "copy") == []
