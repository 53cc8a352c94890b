"""Damage that no attribute shows is found by checksum, named by object, and repaired from a copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness import command
from waystage.catalog import Catalog, CatalogError, build, refresh
from waystage.catalog.checksums import KEY, make, sums_path, verify


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    for number in range(12):
        (root / "a" / f"f{number}").write_bytes(bytes(range(256)) * number * 40)
    (root / "a/b" / os.fsdecode(b"-odd\n\xff")).write_bytes(b"odd")
    (root / "link").symlink_to("a/f1")
    os.mkfifo(root / "fifo")
    return root


def damage(path: Path, at: int) -> None:
    """Change a byte as a failing target does: the times stay as they were."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_sums_are_one_private_file_of_the_documented_columns(catalog: Catalog) -> None:
    made = make(catalog)
    assert (made.files, made.kept, made.unread) == (12, 0, [])
    path = sums_path(catalog)
    assert path.name == "catalog.checksums"
    assert path.stat().st_mode & 0o777 == 0o600
    table = pq.read_table(path)
    assert table.num_rows == 12
    assert set(table["path"].to_pylist()) == {b"a/b/-odd\n\xff", *(f"a/f{n}".encode() for n in range(1, 12))}
    assert json.loads(table.schema.metadata[KEY])["algorithm"] == "xxh3-128"
    found = verify(catalog)
    assert not found and not found.changed
    assert (found.files, found.objects, found.bytes_read) == (12, 12, made.bytes_read)


def test_damage_is_named_and_repaired_and_only_the_damaged_file_written(
    catalog: Catalog, tree: Path, tmp_path: Path
) -> None:
    make(catalog)
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True, ignore=lambda *_: {"fifo"})
    damage(tree / "a/f7", 5000)
    before = {name: (tree / "a" / name).stat().st_ctime_ns for name in os.listdir(tree / "a")}
    found = verify(catalog)
    assert found
    assert [(d.path, d.offset, d.length) for d in found.damaged] == [(b"a/f7", 0, 7 * 40 * 256)]
    repaired = verify(catalog, repair_from=copy)
    assert not repaired and repaired.damaged[0].mended
    assert (tree / "a/f7").read_bytes() == (copy / "a/f7").read_bytes()
    assert {n for n, t in before.items() if (tree / "a" / n).stat().st_ctime_ns != t} == {"f7"}
    assert not verify(catalog).damaged


def test_a_copy_that_is_damaged_or_different_is_not_taken(
    catalog: Catalog, tree: Path, tmp_path: Path
) -> None:
    make(catalog)
    copy = tmp_path / "copy"
    shutil.copytree(tree / "a", copy / "a")
    for name in ("f3", "f4", "f5"):
        damage(tree / "a" / name, 9)
    damage(copy / "a/f3", 70)
    (copy / "a/f4").write_bytes(b"short")
    (copy / "a/f5").unlink()
    (copy / "a/f5").symlink_to(tree / "a/f6")
    held = {name: (tree / "a" / name).read_bytes() for name in ("f3", "f4", "f5")}
    found = verify(catalog, repair_from=copy)
    assert found
    assert not any(d.mended for d in found.damaged)
    assert {path for path, _ in found.failed} == {b"a/f3", b"a/f4", b"a/f5"}
    assert {name: (tree / "a" / name).read_bytes() for name in held} == held


def test_a_changed_file_is_no_damage_and_only_that_is_summed_again(catalog: Catalog, tree: Path) -> None:
    make(catalog)
    (tree / "a/f2").write_bytes(b"new content")
    (tree / "a/f3").unlink()
    (tree / "a/f4").chmod(0o600)
    found = verify(catalog)
    assert not found
    assert {path: what for path, what in found.changed if path == b"a/f3"} == {b"a/f3": ("missing",)}
    assert {path for path, _ in found.changed} == {b"a/f2", b"a/f3"}
    refresh(catalog.path)
    made = make(Catalog(catalog.path))
    assert (made.files, made.kept) == (1, 10)
    found = verify(Catalog(catalog.path))
    assert (found.files, found.changed, bool(found)) == (11, [], False)


def test_sums_that_are_absent_damaged_or_of_another_tree_are_named(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="waystage catalog checksum"):
        verify(catalog)
    make(catalog)
    path = sums_path(catalog)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"PAR1" + b"x" * 100 + b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(CatalogError, match="make it anew"):
            verify(catalog)
    (tmp_path / "other").mkdir()
    build(tmp_path / "other", tmp_path / "second")
    path.write_bytes(whole)
    shutil.copy(path, sums_path(Catalog(tmp_path / "second")))
    with pytest.raises(CatalogError, match="tree and not of"):
        verify(Catalog(tmp_path / "second"))
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[KEY]) | {"version": 99}
    pq.write_table(table.replace_schema_metadata({KEY: json.dumps(about).encode()}), path)
    with pytest.raises(CatalogError, match="99"):
        verify(catalog)


def test_from_the_command_line(tree: Path, tmp_path: Path) -> None:
    def waystage(*arguments: str | Path, expected: int = 0) -> str:
        done = subprocess.run(command("catalog", *arguments), capture_output=True, check=False)
        assert done.returncode == expected, done.stderr.decode()
        return done.stdout.decode()

    catalog = tmp_path / "c"
    built = json.loads(waystage("build", tree, catalog, "--checksums", "--json"))
    assert built["checksums"]["files"] == 12
    shutil.copytree(tree, tmp_path / "copy", symlinks=True, ignore=lambda *_: {"fifo"})
    damage(tree / "a/f9", 1)
    said = waystage("verify", catalog, "--checksums", expected=1)
    assert "! a/f9: object 0 at 0, 92,160 bytes" in said
    found = json.loads(
        waystage("verify", catalog, "--checksums", "--repair-from", tmp_path / "copy", "--json")
    )
    assert [(d["path"], d["mended"]) for d in found["damaged"]] == [("a/f9", True)]
    assert "12 had their checksums" in waystage("checksum", catalog)
    waystage("verify", catalog, "--repair-from", tmp_path / "copy", expected=2)


def test_checksums_of_the_former_version_are_verified_and_gone_on_with(
    catalog: Catalog, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("waystage.catalog.checksums.VERSION", 1)
        make(catalog)
    (tree / "a/new").write_bytes(b"new")
    refresh(catalog.path)
    made = make(Catalog(catalog.path))
    assert (made.files, made.kept) == (1, 12)
    assert json.loads(pq.read_schema(made.path).metadata[KEY])["version"] == 1
    damage(tree / "a/f7", 5000)
    found = verify(Catalog(catalog.path))
    assert [d.path for d in found.damaged] == [b"a/f7"] and not found.changed
    made.path.unlink()
    make(Catalog(catalog.path))
    assert json.loads(pq.read_schema(made.path).metadata[KEY])["version"] == 2
