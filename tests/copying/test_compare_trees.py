"""`waystage compare` and `verify` on trees: every difference is found and named, nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from copying_trees import make_everything
from harness import Waystage


@pytest.fixture
def pair(tmp_path: Path, waystage: Waystage) -> tuple[Path, Path]:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    make_everything(tree)
    assert waystage("copy", "tree", "copy").code == 0
    return tree, copy


def test_a_copy_is_alike(pair: tuple[Path, Path], waystage: Waystage) -> None:
    ran = waystage("compare", "tree", "copy", "--content", "--xattrs", "--json")
    assert ran.code == 0, ran
    assert (ran.json["only_first"], ran.json["only_second"], ran.json["changed"], ran.json["errors"]) == (
        [],
        [],
        [],
        [],
    )
    assert ran.json["same"] > 20


def test_each_difference_is_named(pair: tuple[Path, Path], waystage: Waystage) -> None:
    tree, copy = pair
    (copy / "a/nothing").unlink()
    (copy / "a/more").touch()
    (copy / "a/secret").write_bytes(b"secreT")
    os.utime(copy / "a/secret", ns=(0, (tree / "a/secret").stat().st_mtime_ns))
    (copy / "a/program").chmod(0o600)
    os.setxattr(copy / "a/-rf", "user.more", b"1")
    os.setxattr(copy / "a/b", "user.of-directory", b"other")
    os.utime(copy / "a/ ", ns=(0, 5))
    (copy / "a/loop").unlink()
    (copy / "a/loop").symlink_to("nope")
    os.utime(copy / "a/loop", ns=(0, (tree / "a/loop").lstat().st_mtime_ns), follow_symlinks=False)
    os.utime(copy / "a", ns=(0, (tree / "a").stat().st_mtime_ns))
    ran = waystage("compare", "tree", "copy", "--content", "--xattrs", "--json")
    assert ran.code == 1
    assert (ran.json["only_first"], ran.json["only_second"]) == (["a/nothing"], ["a/more"])
    changed = {c["path"]: c["what"] for c in ran.json["changed"]}
    assert changed == {
        "a/secret": ["content"],
        "a/program": ["mode"],
        "a/-rf": ["xattrs"],
        "a/b": ["xattrs"],
        "a/ ": ["mtime"],
        "a/loop": ["symlink"],
    }
    content = next(c["content"] for c in ran.json["changed"] if c["path"] == "a/secret")
    assert content["first_byte"] == 5
    assert content["digest"] != content["other_digest"]
    ignoring = waystage("compare", "tree", "copy", "--ignore", "mode", "--ignore", "mtime", "--json").json[
        "changed"
    ]
    assert [c["path"] for c in ignoring] == ["a/loop"]


def test_verify_asks_only_for_what_the_source_has(pair: tuple[Path, Path], waystage: Waystage) -> None:
    tree, copy = pair
    (copy / "more").touch()
    os.utime(copy, ns=(0, tree.stat().st_mtime_ns))
    assert waystage("verify", "tree", "copy").code == 0
    assert waystage("compare", "tree", "copy").code == 1
    (copy / "a/fifo").unlink()
    ran = waystage("verify", "tree", "copy")
    assert (ran.code, "- a/fifo" in ran.out) == (1, True)


def test_catalogs_stand_for_their_trees(pair: tuple[Path, Path], waystage: Waystage) -> None:
    tree, copy = pair
    assert waystage("catalog", "build", "tree", "catalog").code == 0
    assert waystage("verify", "tree", "catalog").code == 0
    assert waystage("verify", "catalog", "copy").code == 0
    (copy / "a/secret").write_bytes(b"secreT")
    os.utime(copy / "a/secret", ns=(0, (tree / "a/secret").stat().st_mtime_ns))
    changed = waystage("compare", "catalog", "copy", "--content", "--json").json["changed"]
    assert [(c["path"], c["what"]) for c in changed] == [("a/secret", ["content"])]
    # What the catalog says is compared, not what the tree has become since.
    (tree / "since").touch()
    assert waystage("verify", "tree", "catalog", "--json").json["only_first"] == ["since"]


def test_what_cannot_be_compared_is_said(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "tree").mkdir()
    ran = waystage("verify", "tree", "absent")
    assert (ran.code, "neither a directory nor a catalog" in ran.err) == (3, True)
    assert waystage("compare", "tree", "absent", "--content").code == 3
