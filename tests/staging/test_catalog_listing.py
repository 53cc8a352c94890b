"""A source with a catalog is not walked, and nothing is missed for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from staging_support import Stage, same
from waystage.catalog import build
from waystage.staging.listing import NoListing, listed


def old(top: Path) -> None:
    """Wait until times of the tree are reliable: a change shortly before the catalog would not show."""
    newest = max(path.lstat().st_ctime for path in (top, *top.rglob("*")))
    time.sleep(max(0.0, newest + 2.1 - time.time()))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for folder in ("one", "two/deep", "empty", "gone"):
        (top / folder).mkdir(parents=True)
    for name in ("top", "one/a", "two/b", "two/deep/c", "gone/d", "one/na\nme"):
        (top / name).write_text(name)
    (top / "one" / "link").symlink_to("a")
    old(top)
    build(top, tmp_path / "catalog")
    return top


def names(found: bytes) -> set[str]:
    return {os.fsdecode(name) for name in found.split(b"\0")[:-1]}


def test_an_unchanged_tree_is_listed_without_reading_a_directory(tree: Path) -> None:
    found = listed(str(tree.parent / "catalog"), str(tree))
    assert found.read_again == 0 and found.directories == 6
    assert names(found.names) == {
        *("top", "one/a", "one/na\nme", "one/link", "two/b", "two/deep/c", "gone/d", "empty")
    }


def test_what_has_changed_since_is_read_again(tree: Path) -> None:
    (tree / "one" / "new").write_text("new")
    (tree / "empty" / "more").mkdir()
    (tree / "empty" / "more" / "e").write_text("e")
    (tree / "gone" / "d").unlink()
    (tree / "gone").rmdir()
    found = listed(str(tree.parent / "catalog"), str(tree))
    assert names(found.names) == {
        *("top", "one/a", "one/na\nme", "one/link", "one/new", "two/b", "two/deep/c", "empty/more")
    }
    assert found.read_again == 3


def test_a_directory_below_the_catalogs_root_is_listed_and_one_outside_is_refused(tree: Path) -> None:
    found = listed(str(tree.parent / "catalog"), str(tree / "two"))
    assert names(found.names) == {"b", "deep/c"}
    with pytest.raises(NoListing, match="does not contain"):
        listed(str(tree.parent / "catalog"), str(tree.parent))
    with pytest.raises(NoListing):
        listed(str(tree), str(tree))


def test_a_request_says_that_it_used_the_catalog_and_copies_the_present_files(stage: Stage) -> None:
    source = stage.tree("source", files=30)
    (source / "sub").mkdir()
    (source / "sub" / "x").write_text("x")
    old(source)
    build(source, stage.data / "catalog")
    (source / "sub" / "later").write_text("later")
    stage.give(source)
    stage.start("--catalog", stage.data / "catalog")
    # For root, who can load the reader of catalogs from anywhere.
    done = stage.stage("in", source, stage.data / "copy", "--job", "7", "--json").expect().json
    assert stage.wait(done["id"])[0]["state"] == "done" and same(source, stage.data / "copy")
    choices = {each["what"]: each for each in stage.status(done["id"], explain=True)[0]["choices"]}
    assert "by catalog" in choices["listing"]["chosen"], choices


def test_a_catalog_that_cannot_be_used_is_named_and_the_source_is_walked(stage: Stage) -> None:
    source = stage.tree("source")
    stage.start()
    number = stage.submit("in", source, stage.data / "copy", "--catalog", stage.data)
    assert stage.wait(number)[0]["state"] == "done" and same(source, stage.data / "copy")
    choices = {each["what"]: each for each in stage.status(number, explain=True)[0]["choices"]}
    assert choices["listing"]["chosen"] == "walk of the source" and "is not used" in choices["listing"]["why"]
