"""What a hostile or changing tree does to a catalog: nothing it could not say in one sentence."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow.compute as pc
import pytest

from harness import open_to_others
from waystage._native import LayoutError, parse_layout
from waystage.catalog import BuildOptions, Catalog, CheckedOpener, build, check, entries_of, refresh
from waystage.catalog.checksums import make, verify
from waystage.catalog.export import export
from waystage.catalog.query import Filter, select, totals
from waystage.catalog.store import paths_of

ODD = [
    b"new\nline",
    b"\xff\xfe",
    b"\xc3" * 127 + b"\xa9",
    b"y" * 255,
    b"-rf",
    b"--help",
    b" ",
    b"*",
    b"[a",
    b"\\",
]


def paths(catalog: Catalog, which: Filter | None = None) -> set[bytes]:
    listed = select(catalog, which or Filter(), ["directory", "name"])
    return {path for piece in listed for path in paths_of(piece).to_pylist()}


def test_odd_names_go_through_every_command(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for name in ODD:
        (root / os.fsdecode(name)).mkdir()
        (root / os.fsdecode(name) / os.fsdecode(name)).write_bytes(b"odd")
    expected = {*ODD, *(name + b"/" + name for name in ODD)}
    build(root, tmp_path / "c")
    catalog = Catalog(tmp_path / "c")
    assert paths(catalog) == expected
    assert make(catalog).files == len(ODD)
    assert verify(catalog).objects == len(ODD)
    assert not check(catalog)
    opener = CheckedOpener(catalog)
    for entry in entries_of(catalog.entries()):
        if entry.type == "f":
            with opener.open(entry) as opened:
                assert opened.file.read() == b"odd" and not opened.differences
    for form in ("csv", "jsonl", "mfu"):
        text = b"".join(export(select(catalog, Filter()), form))
        assert text.count(b"\n") == len(expected) + (form == "csv")
        text.decode()
    refresh(catalog.path, stale=[name + b"/" + name for name in ODD])
    assert paths(Catalog(catalog.path)) == expected


def test_loops_of_links_devices_pipes_and_sockets_are_recorded_and_never_opened(tmp_path: Path) -> None:
    import socket

    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a/up").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    os.mkfifo(root / "fifo")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(root / "s"))
    letters = {b"a": "d", b"a/up": "l", b"self": "l", b"one": "l", b"two": "l", b"fifo": "p", b"s": "s"}
    if os.geteuid() == 0:
        try:
            os.mknod(root / "null", 0o600 | 0o020000, os.makedev(1, 3))
            letters[b"null"] = "c"
        except PermissionError:
            pass
    try:
        build(root, tmp_path / "c")
    finally:
        listening.close()
    table = Catalog(tmp_path / "c").entries()
    found = dict(zip(paths_of(table).to_pylist(), table["type"].cast("string").to_pylist(), strict=True))
    assert found == letters
    assert make(Catalog(tmp_path / "c")).files == 0


def test_sparse_terabytes_count_what_they_occupy(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"x")
    build(root, tmp_path / "c")
    found = totals(Catalog(tmp_path / "c"), Filter())
    assert found["bytes"] == 1 << 40
    assert found["allocated_bytes"] <= 1 << 20


def test_one_directory_of_many_entries_is_cut_into_pieces(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for number in range(20_000):
        os.mknod(f"file-{number:06}", 0o600, dir_fd=fd)
    os.close(fd)
    built = build(root, tmp_path / "c", BuildOptions(threads=8, batch_rows=500))
    assert built.entries == 20_000
    catalog = Catalog(tmp_path / "c")
    assert pc.count_distinct(catalog.entries(["name"])["name"]).as_py() == 20_000
    assert catalog.directories()["total"].to_pylist().count(20_000) == 1


def test_a_tree_that_changes_all_the_while_is_walked_checked_and_summed(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for folder in range(40):
        (root / f"d{folder}").mkdir(parents=True)
        for number in range(20):
            (root / f"d{folder}/f{number}").write_bytes(b"x" * 3000)
    for number in range(20):
        (root / f"still{number}").write_bytes(b"y")
    over = threading.Event()

    def change() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            folder = root / f"d{turn % 40}"
            path = folder / f"f{turn % 20}"
            try:
                if turn % 4 == 0:
                    path.unlink(missing_ok=True)
                elif turn % 4 == 1:
                    path.write_bytes(b"z" * (turn % 9000))
                elif turn % 4 == 2:
                    path.unlink(missing_ok=True)
                    path.mkdir()
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)
                    path.symlink_to("/etc")
            except OSError:
                continue

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3):
            build(root, tmp_path / "c", BuildOptions(threads=4, batch_rows=50))
            catalog = Catalog(tmp_path / "c")
            check(catalog, threads=4)
            make(catalog)
            found = verify(catalog)
            # A change is never taken for damage.
            assert not found.damaged
    finally:
        over.set()
        thread.join()
    listed = paths(Catalog(tmp_path / "c"))
    assert {f"still{n}".encode() for n in range(20)} <= listed
    assert not any(path.startswith(b"d1/f1/") or b"passwd" in path for path in listed)
    refresh(tmp_path / "c")
    assert not check(Catalog(tmp_path / "c"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_what_may_not_be_read_is_counted_and_the_rest_recorded(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in ("open", "closed"):
        (root / name).mkdir(parents=True)
        (root / name / "f").write_bytes(b"x")
    (root / "open/secret").write_bytes(b"x")
    (root / "open/secret").chmod(0)
    (root / "closed").chmod(0)
    open_to_others(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    # What is imported when first used: the other user may not be able to read it.
    build(root / "open", tmp_path / "before")
    paths(Catalog(tmp_path / "before"))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            built = build(root, tmp_path / "out/c")
            catalog = Catalog(tmp_path / "out/c")
            made = make(catalog)
            opener = CheckedOpener(catalog)
            refused = 0
            for entry in entries_of(catalog.entries()):
                if entry.path == b"open/secret":
                    try:
                        opener.open(entry)
                    except PermissionError:
                        refused += 1
            good = (
                paths(catalog) == {b"open", b"closed", b"open/f", b"open/secret"}
                and built.counts["errors"] == 1
                and catalog.manifest.errors[0][0] == "closed"
                and [path for path, _ in made.unread] == [b"open/secret"]
                and refused == 1
                and opener.counts()["unreadable"] == 1
            )
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_layout_of_a_million_million_extents_is_summed_up_and_not_listed() -> None:
    # V1 on two targets in stripes of 64 KiB, for a file of 8 EiB less one byte.
    blob = bytes.fromhex(
        "d00bd10b0100000011000000000000000104000002000000000001000200030064000000000000000000000000000000"
        "000000000700000065000000000000000000000000000000000000000c000000"
    )
    layout = parse_layout("lustre", blob, (1 << 63) - 1, mirrors="best", limit=3)
    assert sum(one["bytes"] for one in layout["objects"]) == (1 << 63) - 1
    for cut in set(range(len(blob))) - {32}:
        with pytest.raises(LayoutError):
            parse_layout("lustre", blob[:cut], 100)
    # The header alone is what directories have: it says nothing of where bytes lie.
    assert parse_layout("lustre", blob[:32], 100)["template"]
