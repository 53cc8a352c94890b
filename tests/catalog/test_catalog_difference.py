"""What changed under a catalog is named, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from waystage.catalog import BuildOptions, Catalog, build
from waystage.catalog.checksums import make
from waystage.catalog.difference import diff, verify


def made(root: Path) -> Path:
    (root / "a/b").mkdir(parents=True)
    for number in range(10):
        (root / "a" / f"f{number}").write_bytes(b"x" * number)
    (root / "a/link").symlink_to("f1")
    return root


def test_nothing_changed_is_no_difference(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    build(tree, tmp_path / "catalog")
    (tree / "a/f3").read_bytes()
    found = verify(Catalog(tmp_path / "catalog"))
    assert not found
    assert found.same == 13
    assert sorted(p.name for p in tmp_path.iterdir()) == ["catalog", "tree"]


def test_every_kind_of_change_is_named(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    build(tree, tmp_path / "catalog")
    (tree / "a/f1").write_bytes(b"grown")
    (tree / "a/f2").chmod(0o400)
    (tree / "a/f4").unlink()
    (tree / "a/f5").unlink()
    (tree / "a/f5").mkdir()
    (tree / "a/link").unlink()
    (tree / "a/link").symlink_to("f2")
    (tree / "a/b" / os.fsdecode(b"new\n")).write_bytes(b"")
    found = verify(Catalog(tmp_path / "catalog"))
    changed = dict(found.changed)
    assert found.added == [b"a/b/new\n"]
    assert found.removed == [b"a/f4"]
    assert {"size", "mtime"} <= set(changed[b"a/f1"])
    assert set(changed[b"a/f2"]) == {"mode", "ctime"}
    assert "type" in changed[b"a/f5"]
    assert "symlink" in changed[b"a/link"]
    assert set(changed) == {b"a", b"a/b", b"a/f1", b"a/f2", b"a/f5", b"a/link"}


def test_two_catalogs_are_compared_by_path_whatever_their_roots(tmp_path: Path) -> None:
    build(made(tmp_path / "one"), tmp_path / "c1", BuildOptions(layouts=None))
    build(made(tmp_path / "two"), tmp_path / "c2")
    (tmp_path / "two/a/more").write_bytes(b"")
    build(tmp_path / "two", tmp_path / "c2")
    found = diff(Catalog(tmp_path / "c1"), Catalog(tmp_path / "c2"), columns=("type", "size"))
    assert found.added == [b"a/more"]
    assert [path for path, _ in found.changed if path != b"a"] == []


def test_a_catalog_in_its_own_tree_is_not_in_itself(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    target = tree / "my[1]*catalog"
    (tree / "my1catalog").mkdir()
    build(tree, target)
    catalog = Catalog(target)
    assert catalog.rows == 14
    assert not verify(catalog)
    make(catalog)
    build(tree, target)
    assert Catalog(target).rows == 14


def test_catalogs_that_do_not_fit_into_one_share_are_compared_alike(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    build(tree, tmp_path / "c1")
    (tree / "a/f1").write_bytes(b"grown")
    (tree / "a/f4").unlink()
    for number in range(30):
        (tree / f"new{number:02}").write_bytes(b"")
    build(tree, tmp_path / "c2")
    one, two = Catalog(tmp_path / "c1"), Catalog(tmp_path / "c2")
    whole = diff(one, two)
    assert diff(one, two, share_rows=4) == whole
    assert (whole.added_count, whole.removed_count) == (30, 1)
    assert whole.kinds["size"] == sum("size" in what for _, what in whole.changed) >= 1
    limited = diff(one, two, share_rows=4, limit=3)
    assert limited.added == [b"new00", b"new01", b"new02"]
    assert limited.changed == whole.changed[:3]
    assert (limited.added_count, limited.changed_count) == (30, len(whole.changed))
