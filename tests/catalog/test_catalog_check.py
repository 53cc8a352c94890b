"""A stale entry is found when its file is opened, the file system takes its place, and refresh repairs it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from waystage.catalog import (
    BuildError,
    Catalog,
    CheckedOpener,
    Entry,
    build,
    check,
    entries_of,
    refresh,
)
from waystage.catalog.difference import verify


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for directory in ("a/b", "c"):
        (root / directory).mkdir(parents=True)
    for number in range(20):
        (root / "a" / f"f{number}").write_bytes(b"x" * number)
        (root / "a/b" / f"g{number}").write_bytes(b"y")
    (root / "c" / os.fsdecode(b"-odd\n\xff")).write_bytes(b"odd")
    (root / "c/link").symlink_to("../a/f1")
    return root


def settle() -> None:
    """A catalog doubts directories that changed within two seconds before its walk."""
    time.sleep(2.1)


def entries(catalog: Catalog) -> dict[bytes, Entry]:
    return {entry.path: entry for entry in entries_of(catalog.entries())}


def test_a_file_that_is_as_recorded_is_opened_with_the_catalogs_entry(catalog: Catalog, tree: Path) -> None:
    opener = CheckedOpener(catalog)
    for path, entry in entries(catalog).items():
        if entry.type != "f":
            continue
        with opener.open(entry) as opened:
            assert opened.differences == ()
            assert opened.entry is entry
            assert opened.file.read() == (tree / os.fsdecode(path)).read_bytes()
    counts = opener.counts()
    assert (counts["checked"], counts["stale"]) == (41, 0)


def test_what_changed_is_named_counted_and_replaced_by_the_file_systems_answer(
    catalog: Catalog, tree: Path
) -> None:
    known = entries(catalog)
    opener = CheckedOpener(catalog)
    (tree / "a/f3").write_bytes(b"longer than before")
    (tree / "a/f4").chmod(0o600)
    (tree / "new").write_bytes(b"")
    os.utime(tree / "new", ns=(known[b"a/f0"].mtime, known[b"a/f0"].mtime))
    os.rename(tree / "new", tree / "a/f0")
    with opener.open(known[b"a/f3"]) as opened:
        assert {"size", "mtime", "ctime"} == set(opened.differences)
        assert opened.entry.size == 18
        assert opened.entry.objects == ((known[b"a/f3"].objects[0][0], 0, 18),)
        assert opened.entry.layout == known[b"a/f3"].layout == "local"
    with opener.open(known[b"a/f4"]) as opened:
        assert opened.differences == ("ctime",)
    with opener.open(known[b"a/f0"]) as opened:
        assert "inode" in opened.differences and "size" not in opened.differences
    counts = opener.counts()
    assert (counts["checked"], counts["stale"], counts["size"], counts["inode"]) == (3, 3, 1, 1)
    assert opener.stale_paths() == ([b"a/f3", b"a/f4", b"a/f0"], True)


def test_what_is_no_file_any_more_is_refused_without_waiting_or_leading_out(
    catalog: Catalog, tree: Path, tmp_path: Path
) -> None:
    known = entries(catalog)
    opener = CheckedOpener(catalog)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/g1").write_bytes(b"secret")
    for name in ("f5", "f6", "f7", "f8"):
        (tree / "a" / name).unlink()
    os.mkfifo(tree / "a/f6")
    (tree / "a/f7").mkdir()
    (tree / "a/f8").symlink_to(tmp_path / "outside/g1")
    (tree / "a/b").rename(tree / "a/moved")
    (tree / "a/b").symlink_to(tmp_path / "outside")
    for name, number, kind in (
        (b"a/f5", errno.ENOENT, "missing"),
        (b"a/f6", errno.EINVAL, "type"),
        (b"a/f7", errno.EINVAL, "type"),
        (b"a/f8", errno.ELOOP, "blocked"),
        (b"a/b/g1", errno.ELOOP, "blocked"),
    ):
        before = opener.counts()[kind]
        with pytest.raises(OSError) as raised:
            opener.open(known[name])
        assert raised.value.errno == number, name
        assert opener.counts()[kind] == before + 1, name
    for hostile in (b"../outside/g1", b"/etc/passwd", b"a/../../outside/g1", b""):
        with pytest.raises(OSError):
            opener.open(Entry(hostile, "f", 0, 0, 0, 0))


def test_refresh_repairs_what_was_met_and_keeps_the_rest_unread(tree: Path, tmp_path: Path) -> None:
    settle()
    build(tree, tmp_path / "catalog")
    catalog = Catalog(tmp_path / "catalog")
    (tree / "a/f3").write_bytes(b"rewritten in place: no directory shows it")
    (tree / "a/b/g3").write_bytes(b"this one too, and no opener met it")
    assert refresh(catalog.path, trust_directories=True).counts["unchanged"] == 4
    stale = entries(Catalog(catalog.path))[b"a/f3"]
    opener = CheckedOpener(catalog)
    with opener.open(stale) as opened:
        fresh = opened.entry
    paths, complete = opener.stale_paths()
    assert complete
    built = refresh(catalog.path, stale=paths)
    assert built.kept == 24 and built.counts["directories"] == 1
    repaired = entries(Catalog(catalog.path))
    assert repaired[b"a/f3"] == fresh
    assert repaired[b"a/b/g3"].size == 1
    assert len(repaired) == 45


def test_a_check_of_all_entries_finds_the_same_as_a_walk_but_what_is_new(
    catalog: Catalog, tree: Path
) -> None:
    assert not check(catalog)
    (tree / "a/f1").write_bytes(b"grown")
    (tree / "a/b/g2").unlink()
    (tree / "c/link").unlink()
    (tree / "c/link").mkdir()
    found = check(catalog, threads=3)
    walked = verify(catalog)
    assert found.counts["checked"] == 45
    assert set(found.stale) == {path for path, _ in walked.changed} | set(walked.removed)
    assert found.counts["missing"] == 1 == len(walked.removed)
    for kind in ("type", "size", "inode", "mtime", "ctime"):
        assert found.counts[kind] == sum(kind in what for _, what in walked.changed), kind
    refresh(catalog.path, stale=found.stale)
    assert not check(Catalog(catalog.path))
    assert not verify(Catalog(catalog.path))


def test_a_sample_is_of_about_the_size_asked_for(catalog: Catalog) -> None:
    assert 5 <= check(catalog, sample=20, seed=1).counts["checked"] <= 35


def test_one_opener_serves_threads_and_counts_every_file(catalog: Catalog, tree: Path) -> None:
    files = [entry for entry in entries(catalog).values() if entry.type == "f"]
    (tree / "a/f2").write_bytes(b"changed")
    opener = CheckedOpener(catalog)

    def open_all() -> None:
        for entry in files:
            opener.open(entry).file.close()

    threads = [threading.Thread(target=open_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = opener.counts()
    assert (counts["checked"], counts["stale"], counts["size"]) == (4 * 41, 4, 4)


def test_a_tree_that_is_gone_is_named(catalog: Catalog, tree: Path) -> None:
    tree.rename(tree.with_name("elsewhere"))
    with pytest.raises(BuildError, match="cannot be opened: No such file"):
        CheckedOpener(catalog)
