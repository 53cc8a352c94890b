"""What `waystage verify` and `compare` find besides, what they leave alone, and names that no line of text tells."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Waystage
from waystage.catalog import Catalog, build
from waystage.catalog.export import export
from waystage.catalog.query import Filter, by_column, select, size_histogram, totals
from waystage.cli.main import run
from waystage.trees import Wanted, compare

HOSTILE = [b"new\nline", b"new\\nline", b"\xff\xfe", b"-rf", b"--help", b" ", b"*", b"tab\t", b"\\xff"]
EVERYTHING = Wanted(content=True, xattrs=True)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two trees that are alike, made without any copier."""
    trees = (tmp_path / "one", tmp_path / "two")
    for root in trees:
        (root / "d").mkdir(parents=True)
        (root / "d/f").write_bytes(b"content")
        (root / "d/g").write_bytes(b"content")
        (root / "link").symlink_to("d/f")
        os.mkfifo(root / "fifo")
        same_times(root)
    return trees


def same_times(root: Path) -> None:
    for where, _, files in os.walk(os.fsencode(root), topdown=False):
        for name in [*files, b"."]:
            os.utime(os.path.join(where, name), ns=(0, 10**18), follow_symlinks=False)


def changed(pair: tuple[Path, Path], wanted: Wanted = EVERYTHING) -> dict[bytes, list[str]]:
    for root in pair:
        same_times(root)
    found = compare(*pair, wanted)
    assert not found.errors and not found.only_first and not found.only_second
    assert found.same >= 0
    return found.changed


def test_trees_that_are_alike_are(pair: tuple[Path, Path]) -> None:
    assert changed(pair) == {}
    assert compare(*pair, EVERYTHING).same == 6


def test_attributes_of_directories_of_other_sizes_are_compared(pair: tuple[Path, Path]) -> None:
    for number in range(600):
        (pair[1] / "d" / (f"{number}" + "x" * 200)).touch()
    for path in (pair[1] / "d").glob("*xxx*"):
        path.unlink()
    try:
        os.setxattr(pair[0] / "d", "user.kept", b"1")
    except OSError:
        pytest.skip("this file system keeps no extended attributes")
    if (pair[0] / "d").stat().st_size == (pair[1] / "d").stat().st_size:
        pytest.skip("directories do not grow on this file system")
    assert changed(pair) == {b"d": ["xattrs"]}


def test_the_root_itself_is_compared(pair: tuple[Path, Path], tmp_path: Path, waystage: Waystage) -> None:
    pair[1].chmod(0o700 if stat.S_IMODE(pair[0].stat().st_mode) != 0o700 else 0o755)
    assert changed(pair) == {b"": ["mode"]}
    build(pair[0], tmp_path / "catalog")
    assert compare(tmp_path / "catalog", pair[1], Wanted()).changed == {b"": ["mode"]}
    ran = waystage("verify", "one", "two")
    assert (ran.code, "~ . (mode)" in ran.out, "1 different, 5 equal" in ran.out) == (1, True, True)
    assert waystage("verify", "one", "two", "--ignore", "mode").code == 0


def test_a_link_from_elsewhere_is_no_difference_and_one_in_the_tree_is(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    os.link(pair[0] / "d/f", tmp_path / "elsewhere")
    assert changed(pair) == {}
    # As many links, of another file.
    (pair[0] / "d/g").unlink()
    os.link(pair[0] / "d/f", pair[0] / "d/g")
    os.link(pair[1] / "d/f", tmp_path / "too")
    os.link(pair[1] / "d/g", tmp_path / "and-too")
    assert changed(pair) == {b"d/g": ["links"]}
    assert changed(pair, Wanted(ignore=("links",))) == {}


@pytest.mark.parametrize("name", ["fifo", "link"])
def test_hard_links_of_what_is_no_file_are_compared(pair: tuple[Path, Path], name: str) -> None:
    os.link(pair[0] / name, pair[0] / "zz", follow_symlinks=False)
    if name == "fifo":
        os.mkfifo(pair[1] / "zz")
    else:
        (pair[1] / "zz").symlink_to("d/f")
    assert changed(pair) == {b"zz": ["links"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_other_devices_are_other_entries(pair: tuple[Path, Path]) -> None:
    try:
        for minor, root in enumerate(pair):
            os.mknod(root / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3 + minor))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    assert changed(pair, Wanted()) == {b"device": ["device"]}


def test_times_that_nanoseconds_do_not_reach_are_compared_and_kept(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    year_2300, second = 10_413_792_000, 10**9
    for root, more in zip(pair, (0, 86_400), strict=True):
        os.utime(root / "d/f", ns=(0, (year_2300 + more) * second + 7))
    if (pair[0] / "d/f").stat().st_mtime_ns != year_2300 * second + 7:
        pytest.skip("this file system has no such times")
    found = compare(*pair, EVERYTHING)
    assert found.changed == {b"d/f": ["mtime"]}
    os.utime(pair[1] / "d/f", ns=(0, year_2300 * second + 7))
    assert compare(*pair, EVERYTHING).changed == {}
    os.utime(pair[1] / "d/f", ns=(0, year_2300 * second + 8))
    assert compare(*pair, EVERYTHING).changed == {b"d/f": ["mtime"]}
    build(pair[0], tmp_path / "catalog")
    lines = b"".join(export(select(Catalog(tmp_path / "catalog"), Filter()), "jsonl"))
    assert f'"mtime_ns": {year_2300 * second + 7}'.encode() in lines


def test_holes_are_not_read_and_the_same_bytes_are_alike_wherever_holes_are(
    pair: tuple[Path, Path], waystage: Waystage
) -> None:
    size = 1 << 40
    for root, stored in zip(pair, (0, 300_000), strict=True):
        with open(root / "sparse", "wb") as file:
            file.truncate(size)
            file.write(bytes(stored))
            file.seek(size // 2)
            file.write(b"data" * 1024)
        same_times(root)
    ran = waystage("verify", "one", "two", "--json")
    assert (ran.code, ran.json["changed"]) == (0, []), ran
    assert ran.json["bytes_read"] < 10 << 20
    with open(pair[1] / "sparse", "r+b") as file:
        file.seek(size - 5)
        file.write(b"x")
    same_times(pair[1])
    ran = waystage("compare", "one", "two", "--content", "--json")
    assert ran.code == 1
    (unlike,) = ran.json["changed"]
    assert (unlike["path"], unlike["content"]["first_byte"]) == ("sparse", size - 5)
    assert unlike["content"]["digest"] is None  # hashing 2^40 zeros would take longer than all else
    assert waystage("catalog", "build", "one", "c", "--checksums").code == 0
    assert waystage("catalog", "verify", "c", "--checksums").code == 0


def test_names_that_a_line_does_not_tell_are_given_exactly(
    pair: tuple[Path, Path], waystage: Waystage
) -> None:
    for name in HOSTILE:
        (pair[0] / os.fsdecode(name)).write_bytes(b"")
    ran = waystage("compare", "one", "two", "--json")
    told = {
        base64.b64decode(exact) if exact else text.encode()
        for text, exact in zip(ran.json["only_first"], ran.json["only_first_base64"], strict=True)
    }
    assert told == {*HOSTILE}
    assert waystage("catalog", "build", "one", "new", "-q").code == 0
    assert waystage("catalog", "build", "two", "old", "-q").code == 0
    diff = waystage("catalog", "diff", "old", "new", "--json").json
    assert [base64.b64decode(e) if e else t.encode() for t, e in zip(diff["added"], diff["added_base64"], strict=True)] == sorted(HOSTILE)  # fmt: skip
    assert waystage("verify", "one", "two", "-0", "--json").code == 2


def test_what_differs_feeds_a_copy_that_makes_it_alike(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for name in HOSTILE:
        for folder in ("", "d", "deep"):
            path = pair[0] / folder / os.fsdecode(name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(name)
    (pair[0] / "empty").mkdir(mode=0o711)
    (pair[0] / "d/g").write_bytes(b"other")
    (pair[0] / "d").chmod(0o710)

    def ran(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "waystage", *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, cwd=tmp_path, timeout=150, check=False
        )

    listed = ran("verify", "one", "two", "-0")
    assert listed.returncode == 1
    names = listed.stdout.split(b"\0")[:-1]
    assert {*HOSTILE, b"d/-rf", b"deep", b"empty", b"d/g"} <= {*names}
    assert b"." not in names and b"d" not in names  # the copy comes through these
    copied = ran("copy", "one", "two", "--files-from", "-", "--null", given=listed.stdout)
    assert copied.returncode == 0, copied
    again = ran("verify", "one", "two")
    assert again.returncode == 0, again.stdout
    assert ran("verify", "one", "two", "-0").stdout == b""


def test_only_what_a_copy_leaves_for_itself_is_left_out(pair: tuple[Path, Path]) -> None:
    names = [".waystage-copy-notes", ".waystage-copying", ".waystage-copy-0000000000000005-x.part"]
    for name in names:
        (pair[0] / name).touch()
    (pair[1] / ".waystage-copy").mkdir()
    (pair[1] / ".waystage-copy-00000000000000ff-00112233445566aa.part").touch()
    (pair[1] / ".waystage-copy-00000000000000ff-large-00112233445566aa.part").touch()
    found = compare(*pair, Wanted(ignore=("mtime",)))
    assert (found.only_first, found.only_second) == (sorted(os.fsencode(n) for n in names), [])


def test_sizes_are_what_finds_are(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for size in (0, 1, 2, 511, 512, 513, 1023, 1024, 1025, 2048, 1 << 20, (1 << 20) + 1):
        (root / f"f{size}").write_bytes(b"")
        os.truncate(root / f"f{size}", size)
    build(root, tmp_path / "c")
    catalog = Catalog(tmp_path / "c")
    for unit in "cwbkMG":
        for sign in ("", "+", "-"):
            for number in (0, 1, 2, 3, 513, 1 << 70):
                size = f"{sign}{number}{unit}"
                if number < 1 << 40:
                    found = subprocess.run(
                        ["find", ".", "-type", "f", "-size", size, "-printf", "%P\n"],
                        cwd=root, capture_output=True, text=True, check=True,
                    ).stdout.split()  # fmt: skip
                else:
                    found = sorted(os.listdir(root)) if sign == "-" else []
                asked = select(catalog, Filter(types="f", size=size), ["name"])
                assert sorted(n.decode() for p in asked for n in p["name"].to_pylist()) == sorted(found), size


def test_a_file_counts_once_in_every_total(tmp_path: Path, waystage: Waystage) -> None:
    root = tmp_path / "tree"
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
    (root / "a/large").write_bytes(bytes(range(256)) * 400)
    for number in range(3):
        os.link(root / "a/large", root / f"b/name{number}")
    (root / "a/small").write_bytes(b"12345")
    (root / "a/link").symlink_to("small")
    whole = 256 * 400 + 5
    build(root, tmp_path / "c")
    catalog = Catalog(tmp_path / "c")
    for which in (Filter(), Filter(types="f"), Filter(size="+0")):
        assert totals(catalog, which)["bytes"] == whole
        for column in ("uid", "gid", "type", "layout"):
            assert sum(row["bytes"] for row in by_column(catalog, which, column).to_pylist()) == whole
        bins = size_histogram(catalog, which)
        assert (sum(b["bytes"] for b in bins), sum(b["files"] for b in bins)) == (whole, 2)
    folders = {
        row["directory"]: row["bytes"] for row in by_column(catalog, Filter(), "directory").to_pylist()
    }
    assert folders == {b"": 0, b"a": whole, b"b": whole - 5}
    assert totals(catalog, Filter(path=b"b/*"))["bytes"] == whole - 5
    for source in ("tree", "c"):
        dry = waystage("dedup", source, "--dry-run", "--json").json
        assert (dry["files"], dry["bytes"]) == (2, whole)
        assert waystage("dedup", source, "--json").json["all"]["bytes"] == whole
    assert waystage("catalog", "refresh", "c", "--json").json["counts"]["bytes"] == whole


def test_a_source_that_is_missing_is_bad_input_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    (tmp_path / "gone").mkdir()
    assert run(["catalog", "build", "gone", "orphan"]) == 0
    (tmp_path / "gone").rmdir()
    for arguments in (
        ["copy", "absent", "to"],
        ["verify", "absent", "tree"],
        ["compare", "absent", "tree"],
        ["compare", "tree", "absent", "--content"],
        ["dedup", "absent"],
        ["catalog", "build", "absent", "c"],
        ["catalog", "query", "absent"],
        ["catalog", "diff", "absent", "absent"],
        ["catalog", "refresh", "orphan"],
        ["catalog", "verify", "orphan"],
        ["catalog", "check", "orphan"],
        ["catalog", "checksum", "orphan"],
    ):
        assert run(arguments) == 3, arguments
        said = capsys.readouterr().err
        assert "internal" not in said and said.count("error: ") == 1, (arguments, said)
