"""What a catalog holds, how it goes on after an interruption, and what it does with damaged ones."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness import open_to_others, wait_until
from waystage.catalog import BuildError, BuildOptions, Catalog, CatalogBusy, CatalogError, build, refresh
from waystage.catalog.kept import DOUBTFUL_S
from waystage.catalog.options import JOURNAL
from waystage.catalog.store import MANIFEST, paths_of

ODD_NAMES = [b"new\nline", b"\xff\xfe", b"x" * 255, b"-rf", b"quo'te", b"sp ace"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for directory in ("a/b", "c", "empty"):
        (root / directory).mkdir(parents=True)
    for number in range(30):
        (root / "a" / f"f{number}").write_bytes(b"x" * number)
        (root / "a/b" / f"g{number}").write_bytes(b"y")
    (root / "c/link").symlink_to("/etc/passwd")
    (root / "c/loop").symlink_to("../c")
    os.mkfifo(root / "c/fifo")
    for name in ODD_NAMES:
        (root / "c" / os.fsdecode(name)).write_bytes(b"odd")
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
    os.link(root / "a/f1", root / "a/hard")
    return root


def found_in(catalog: Catalog) -> set[bytes]:
    return set(paths_of(catalog.entries(["directory", "name"])).to_pylist())


def there_in(root: Path) -> set[bytes]:
    top = os.fsencode(root)
    return {
        os.path.relpath(os.path.join(where, name), top)
        for where, directories, files in os.walk(top)
        for name in directories + files
    }


def test_a_catalog_holds_what_stat_says_of_every_entry(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    built = build(tree, target)
    catalog = Catalog(target)
    assert found_in(catalog) == there_in(tree)
    assert built.entries == catalog.rows == len(there_in(tree))
    table = catalog.entries()
    letters = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p"}
    for path, row in zip(paths_of(table).to_pylist(), range(table.num_rows), strict=True):
        full = os.path.join(os.fsencode(tree), path)
        real = os.lstat(full)

        def time_ns(column: str, row: int = row) -> int:
            value = table[column][row]
            return (value if value.is_valid else table["mtime"][row]).value

        assert table["type"][row].as_py() == letters[stat.S_IFMT(real.st_mode)]
        for column, expected in (
            ("size", real.st_size),
            ("mode", stat.S_IMODE(real.st_mode)),
            ("uid", real.st_uid),
            ("gid", real.st_gid),
            ("inode", real.st_ino),
            ("device", real.st_dev),
            ("links", real.st_nlink),
            ("blocks", real.st_blocks),
        ):
            assert table[column][row].as_py() == expected, (path, column)
        assert (time_ns("mtime"), time_ns("ctime")) == (real.st_mtime_ns, real.st_ctime_ns)
        assert table["symlink"][row].as_py() == (os.readlink(full) if stat.S_ISLNK(real.st_mode) else None)


def test_a_catalog_is_its_builders_alone_whatever_the_umask(tree: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        build(tree, tmp_path / "catalog")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "catalog").stat().st_mode) == 0o700
    for path in (tmp_path / "catalog").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_does_not_see_into_a_catalog(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target)
    open_to_others(tmp_path)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            Catalog(target)
        except CatalogError as error:
            os._exit(0 if "permission" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_other_programs_open_it_as_plain_parquet(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target)
    tables = [pq.read_table(file) for file in sorted(target.glob("entries-*.parquet"))]
    assert sum(table.num_rows for table in tables) == len(there_in(tree))


def test_exclusions_leave_out_and_stay_for_a_refresh(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target, BuildOptions(exclude=("f1*", "/a/b")))
    assert not any(path.startswith((b"a/b", b"a/f1")) for path in found_in(Catalog(target)))
    (tree / "a/f100").write_bytes(b"")
    (tree / "a/new").write_bytes(b"")
    refresh(target)
    assert b"a/new" in found_in(Catalog(target))
    assert b"a/f100" not in found_in(Catalog(target))


def test_a_refresh_finds_what_changed_added_and_went(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target)
    (tree / "a/f3").write_bytes(b"longer than before")
    (tree / "a/f4").unlink()
    (tree / "c/new").write_bytes(b"")
    refresh(target)
    table = Catalog(target).entries()
    assert found_in(Catalog(target)) == there_in(tree)
    row = paths_of(table).to_pylist().index(b"a/f3")
    assert table["size"][row].as_py() == len(b"longer than before")


def test_trusting_directories_reads_only_those_that_changed(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    age(tree)
    build(tree, target)
    (tree / "a/b/added").write_bytes(b"")
    (tree / "a/b/g7").unlink()
    (tree / "fresh/below").mkdir(parents=True)
    (tree / "fresh/below/x").write_bytes(b"")
    for name in os.listdir(os.fsencode(tree / "c")):
        os.unlink(os.path.join(os.fsencode(tree / "c"), name))
    (tree / "c").rmdir()
    built = refresh(target, trust_directories=True)
    assert found_in(Catalog(target)) == there_in(tree)
    assert built.kept >= 30
    assert built.counts["unchanged"] == 2
    again = refresh(target, trust_directories=True)
    assert again.entries == built.entries
    assert found_in(Catalog(target)) == there_in(tree)


def test_a_directory_that_changed_while_it_was_catalogued_is_not_trusted(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    folders = [tree, *(path for path in tree.rglob("*") if path.is_dir() and not path.is_symlink())]

    def built_at_once() -> bool:
        """Whether the walk began so soon after the directories changed that their times are doubtful."""
        for folder in folders:
            os.utime(folder)
        build(tree, target)
        return Catalog(target).manifest.started < folders[0].stat().st_ctime + DOUBTFUL_S - 0.1

    wait_until(built_at_once)
    assert refresh(target, trust_directories=True).counts["unchanged"] == 0


def age(tree: Path) -> None:
    """Wait until the tree's times are older than what a catalog regards as doubtful; ctime cannot be set."""
    newest = max(os.lstat(os.path.join(os.fsencode(tree), path)).st_ctime for path in there_in(tree))
    time.sleep(max(0.0, newest + 2.1 - time.time()))


def test_an_interrupted_build_goes_on_and_counts_nothing_twice(tree: Path, tmp_path: Path) -> None:
    target, partial = tmp_path / "catalog", tmp_path / "catalog.partial"
    for number in range(60):
        (tree / f"d{number}").mkdir()
        for file in range(20):
            (tree / f"d{number}/x{file}").write_bytes(b"")
    age(tree)
    interrupt_at(tree, target, 300)
    assert not target.exists()
    assert (partial / JOURNAL).exists()
    (tree / "d3/later").write_bytes(b"")
    built = build(tree, target)
    assert built.resumed
    assert built.kept > 0
    table = Catalog(target).entries(["directory", "name"])
    paths = paths_of(table)
    assert pc.count_distinct(paths).as_py() == table.num_rows
    assert set(paths.to_pylist()) == there_in(tree)
    assert not partial.exists()


def interrupt_at(tree: Path, target: Path, rows: int) -> None:
    """Build with batches of a few entries, and be interrupted after `rows` of them."""
    from waystage.catalog import recording

    real = recording.Recorder.add

    def add(self: recording.Recorder, batch: object) -> None:
        real(self, batch)  # type: ignore[arg-type]
        if self.done.rows >= rows:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording.Recorder, "add", add)
        with pytest.raises(KeyboardInterrupt):
            build(tree, target, BuildOptions(threads=2, batch_rows=40))


def test_a_killed_build_leaves_no_catalog_and_can_be_finished(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    code = (
        "import os, signal, sys; from pathlib import Path; from waystage.catalog import recording, build\n"
        "def close(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "recording.Recorder.close_part = close\n"
        f"build(Path({str(tree)!r}), Path({str(target)!r}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert not target.exists()
    build(tree, target)
    assert found_in(Catalog(target)) == there_in(tree)


def test_what_an_interrupted_build_of_another_tree_left_is_not_mixed_in(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    interrupt_at(tree, target, 1)
    with pytest.raises(BuildError, match="other options"):
        build(tmp_path, target)
    assert build(tree / "a", target, BuildOptions(restart=True)).entries == len(there_in(tree / "a"))


def test_two_builds_of_one_catalog_do_not_meet(tree: Path, tmp_path: Path) -> None:
    import fcntl

    partial = tmp_path / "catalog.partial"
    partial.mkdir()
    with open(partial / "_lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CatalogBusy):
            build(tree, tmp_path / "catalog")


def test_unusable_trees_and_targets_are_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no directory"):
        build(tree / "a/f1", tmp_path / "catalog")
    with pytest.raises(BuildError, match="no directory"):
        build(tree / "absent", tmp_path / "catalog")
    with pytest.raises(CatalogError, match="no catalog"):
        build(tree, tree / "a")
    assert (tree / "a/f1").exists()


def test_damaged_catalogs_are_refused_with_what_to_do(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target)
    manifest = target / MANIFEST
    whole = manifest.read_text()
    entries = next(target.glob("entries-*.parquet"))
    content = entries.read_bytes()

    for damage in ("", "{", "[]", "{}", '{"format": "waystage-catalog"}', whole[: len(whole) // 2]):
        manifest.write_text(damage)
        with pytest.raises(CatalogError, match="build the catalog anew"):
            Catalog(target)
    manifest.write_text(json.dumps(json.loads(whole) | {"version": 99}))
    with pytest.raises(CatalogError, match="version 99"):
        Catalog(target)
    manifest.write_text(whole)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        entries.write_bytes(content[:length])
        with pytest.raises(CatalogError, match="damaged"):
            Catalog(target)
    entries.unlink()
    with pytest.raises(CatalogError, match="missing"):
        Catalog(target)


def test_damage_that_opening_does_not_show_is_named_or_harmless(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    build(tree, target)
    whole = Catalog(target).entries()
    entries = next(target.glob("entries-*.parquet"))
    content = entries.read_bytes()
    named = 0
    for position in range(4, len(content) // 2, 97):
        entries.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            assert Catalog(target).entries().num_rows == whole.num_rows
        except CatalogError as error:
            named += "damaged" in str(error)
    assert named > 0


def test_a_full_refresh_does_not_go_on_with_what_a_trusting_one_left(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "catalog"
    age(tree)
    build(tree, target)
    (tree / "a/f9").write_bytes(b"rewritten in place, so that its directory shows nothing")

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    for again in (lambda: refresh(target), lambda: build(tree, target)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules["waystage.catalog.build"], "drop_entries", stop)
            with pytest.raises(KeyboardInterrupt):
                refresh(target, trust_directories=True)
        assert (tmp_path / "catalog.partial" / JOURNAL).exists()
        again()
        table = Catalog(target).entries(["directory", "name", "size"])
        sizes = dict(zip(paths_of(table).to_pylist(), table["size"].to_pylist(), strict=True))
        assert sizes[b"a/f9"] == (tree / "a/f9").stat().st_size
        assert len(sizes) == table.num_rows == len(there_in(tree))


def test_an_empty_tree_has_an_empty_catalog(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert build(tmp_path / "nothing", tmp_path / "catalog").entries == 0
    assert Catalog(tmp_path / "catalog").entries().num_rows == 0
