"""A shared catalog shows each user what the file system would."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.catalog import BuildError, Catalog, CatalogError, build, refresh
from waystage.catalog.rights import ACL, SEARCH, Condition
from waystage.catalog.share import share
from waystage.catalog.store import paths_of
from waystage.catalog.summary import Summary

ALICE, BOB, CAROL, MALLORY = 61001, 61002, 61003, 61004
TEAM = 62001

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="other users' rights need root to be tried")


@contextmanager
def being(uid: int, *groups: int) -> Iterator[None]:
    """Be this user for the file system, in this whole process."""
    mine = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(mine)


def listed(catalog: Path) -> set[str]:
    opened = Catalog(catalog)
    return {os.fsdecode(path) for path in paths_of(opened.entries(["directory", "name"])).to_pylist()}


def walked(tree: Path) -> set[str]:
    """What this user's own walk finds and can stat."""
    found = set()
    for folder, directories, files in os.walk(tree):
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            try:
                os.lstat(path)
            except PermissionError:
                continue
            found.add(os.path.relpath(path, tree))
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach: pytest's own are their owner's alone."""
    folder = Path(tempfile.mkdtemp(prefix="waystage-share-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def acl_bytes(text: str) -> bytes:
    """A list as acl(5) writes it, in short, as the kernel takes it: tags are 1, 2 users; 4, 8 groups; 16 mask; 32 others."""
    entries = []
    for one in text.split(","):
        tag, who, permissions = one.split(":")
        number = {"u": 2 if who else 1, "g": 8 if who else 4, "m": 16, "o": 32}[tag]
        bits = sum({"r": 4, "w": 2, "x": 1, "-": 0}[letter] for letter in permissions)
        entries.append((number, bits, int(who) if who else 0xFFFFFFFF))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))


def made(path: Path, uid: int, gid: int, mode: int, acl: str = "") -> None:
    path.mkdir(parents=True)
    (path / f"in-{path.name}").write_bytes(b"x" * 10)
    os.chown(path, uid, gid)
    path.chmod(mode)
    if acl:
        os.setxattr(path, ACL, acl_bytes(acl))


@pytest.fixture
def tree(place: Path) -> Path:
    root = place / "tree"
    made(root, 0, 0, 0o755)
    made(root / "alice", ALICE, ALICE, 0o700)
    made(root / "alice/team-inside", ALICE, TEAM, 0o755)
    made(root / "team", ALICE, TEAM, 0o750)
    made(root / "team/bob-only", BOB, BOB, 0o700)
    made(root / "search-only", ALICE, ALICE, 0o711)
    made(root / "search-only/open", ALICE, ALICE, 0o755)
    made(root / "not-the-owner", ALICE, ALICE, 0o077)
    made(root / "not-the-group", ALICE, TEAM, 0o705)
    made(root / "names-only", ALICE, ALICE, 0o744)
    return root


@root_only
@pytest.mark.parametrize("uid", [ALICE, BOB, CAROL, MALLORY])
@pytest.mark.parametrize("groups", [(), (TEAM,)])
def test_each_user_sees_what_the_file_system_shows(
    tree: Path, place: Path, uid: int, groups: tuple[int, ...]
) -> None:
    build(tree, place / "mine")
    shared = share(place / "mine", place / "shared")
    assert shared.withheld == 0
    whole = listed(place / "mine")
    assert listed(place / "shared") == whole
    with being(uid, *groups):
        seen = listed(place / "shared")
        # A directory that can be searched but not listed hides its entries from a walk, but not from known names.
        reachable = {path for path in whole if path.startswith("search-only/open/")}
        assert seen == walked(tree) | reachable
    assert seen != whole


@root_only
def test_totals_are_of_what_is_seen(tree: Path, place: Path) -> None:
    build(tree, place / "mine")
    share(place / "mine", place / "shared")
    with being(BOB, TEAM):
        catalog = Catalog(place / "shared")
        summary = catalog.summary()
        assert isinstance(summary, Summary)
        held = summary.by["type"]
        assert held is not None
        assert sum(number for number, _ in held.values()) == catalog.rows == len(listed(place / "shared"))
        assert catalog.hidden_sections > 0
        paths = {os.fsdecode(path) for path in catalog.directories()["path"].to_pylist()}
        assert "team" in paths
        assert "alice" not in paths


@root_only
def test_no_file_holds_names_of_another_section(tree: Path, place: Path) -> None:
    build(tree, place / "mine")
    share(place / "mine", place / "shared")
    with being(MALLORY):
        readable = [path for path in (place / "shared").rglob("*") if path.is_file() and os.access(path, os.R_OK, effective_ids=True)]  # fmt: skip
        for file in readable:
            if file.suffix == ".parquet":
                text = str(
                    [
                        pq.read_table(file)[name].to_pylist()
                        for name in ("directory", "name", "path")
                        if name in pq.read_schema(file).names
                    ]
                )
                held = pq.ParquetFile(
                    file, read_dictionary=["directory"] if "entries" in file.name else None
                ).read()
                if "directory" in held.column_names:
                    text += str([chunk.dictionary.to_pylist() for chunk in held["directory"].chunks])
            else:
                text = file.read_text()
            assert "in-alice" not in text
            assert "bob-only" not in text
            assert "team-inside" not in text
    assert readable


@root_only
def test_access_control_lists_count(place: Path) -> None:
    tree = place / "tree"
    made(tree, 0, 0, 0o755)
    made(tree / "bob-too", ALICE, ALICE, 0, f"u::rwx,u:{BOB}:rx,g::-,m::rx,o::-")
    made(tree / "team-too", ALICE, ALICE, 0, f"u::rwx,g:{TEAM}:rx,g::-,m::rx,o::-")
    made(tree / "masked", ALICE, ALICE, 0, f"u::rwx,u:{BOB}:rx,g::-,o::-,m::-")
    made(tree / "all-but-bob", ALICE, ALICE, 0, f"u::rwx,u:{BOB}:-,g::rx,m::rx,o::rx")
    build(tree, place / "mine")
    share(place / "mine", place / "shared")
    for uid, groups in ((ALICE, ()), (BOB, ()), (CAROL, (TEAM,)), (BOB, (TEAM,)), (MALLORY, ())):
        with being(uid, *groups):
            assert listed(place / "shared") == walked(tree), (uid, groups)


@root_only
def test_the_way_to_the_root_counts(place: Path) -> None:
    tree = place / "home" / "data"
    made(tree, ALICE, ALICE, 0o755)
    os.chown(tree.parent, ALICE, ALICE)
    tree.parent.chmod(0o700)
    build(tree, place / "mine")
    share(place / "mine", place / "shared")
    with being(ALICE):
        assert listed(place / "shared") == {"in-data"}
    with being(BOB):
        assert listed(place / "shared") == set()


@root_only
def test_a_directory_put_in_anothers_place_shows_nothing(tree: Path, place: Path) -> None:
    build(tree, place / "mine")
    os.rename(tree / "alice", tree / "elsewhere")
    made(tree / "alice", MALLORY, MALLORY, 0o755)
    os.rename(tree / "team", tree / "team-was")
    (tree / "team").symlink_to("search-only/open")
    shared = share(place / "mine", place / "shared")
    assert shared.withheld == 6
    with being(MALLORY):
        seen = listed(place / "shared")
        assert not any(path.startswith(("alice/", "team/")) for path in seen)
    assert listed(place / "shared") == listed(place / "mine")


@root_only
def test_no_user_can_change_it(tree: Path, place: Path) -> None:
    build(tree, place / "mine")
    share(place / "mine", place / "shared")
    with being(ALICE):
        for path in (place / "shared").rglob("*"):
            assert not os.access(path, os.W_OK, effective_ids=True), path


@root_only
def test_users_share_their_own(place: Path) -> None:
    made(place / "alice", ALICE, ALICE, 0o755)
    made(place / "alice/tree", ALICE, ALICE, 0o750)
    made(place / "alice/tree/foreign", ALICE, TEAM, 0o750)
    with being(ALICE):
        build(place / "alice/tree", place / "alice/mine")
        with pytest.raises(BuildError, match="run as root"):
            share(place / "alice/mine", place / "alice/shared")
        assert sorted(path.name for path in (place / "alice").iterdir()) == ["in-alice", "mine", "tree"]
    with being(ALICE, TEAM):
        share(place / "alice/mine", place / "alice/shared")
        assert len(listed(place / "alice/shared")) == 3
    with being(BOB):
        assert listed(place / "alice/shared") == set()


def test_sharing_again_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/one").write_bytes(b"")
    build(tmp_path / "tree", tmp_path / "mine")
    share(tmp_path / "mine", tmp_path / "shared")
    (tmp_path / "tree/two").write_bytes(b"")
    refresh(tmp_path / "mine")
    share(tmp_path / "mine", tmp_path / "shared")
    assert listed(tmp_path / "shared") == {"one", "two"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "shared", "tree"]


def test_what_cannot_be_done_says_so(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    build(tmp_path / "tree", tmp_path / "mine")
    share(tmp_path / "mine", tmp_path / "shared")
    with pytest.raises(CatalogError, match="share the one it was made of"):
        share(tmp_path / "shared", tmp_path / "again")
    with pytest.raises(CatalogError, match="refresh the one it was made of"):
        refresh(tmp_path / "shared")
    with pytest.raises(CatalogError, match="another one"):
        share(tmp_path / "mine", tmp_path / "mine")
    (tmp_path / "other").mkdir()
    with pytest.raises(CatalogError, match="no catalog"):
        share(tmp_path / "mine", tmp_path / "other")


def test_a_manifest_cannot_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/one").write_bytes(b"")
    build(tmp_path / "tree", tmp_path / "mine")
    share(tmp_path / "mine", tmp_path / "shared")
    manifest = tmp_path / "shared/_catalog.json"
    manifest.write_text(manifest.read_text().replace('"sections/', '"../shared/sections/'))
    with pytest.raises(CatalogError, match="damaged"):
        Catalog(tmp_path / "shared")


@given(st.binary(max_size=64))
def test_any_bytes_are_an_access_control_list_or_none(acl: bytes) -> None:
    try:
        found = Condition.of(1, 1, 0o755, acl, SEARCH)
    except ValueError:
        return
    assert struct.unpack_from("<I", acl)[0] == 2
    assert struct.unpack_from("<I", found.acl(0))[0] == 2
