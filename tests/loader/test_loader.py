"""What a program gets that iterates over a loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import WAIT_S
from waystage.catalog import Catalog, refresh
from waystage.loader import FileNotLoaded, Loader, LoaderError, Profile
from waystage.loader.files import file_set

Contents = dict[str, bytes]
Join = Callable[[list[Any]], Contents]


def files_of(loader: Loader) -> Contents:
    return {path: bytes(data) for path, data in loader}


@pytest.mark.parametrize("mode", ["catalog", "object", "file"])
@pytest.mark.parametrize("order", ["epoch", "arrival"])
def test_every_file_arrives_whole_and_once(
    catalog: Path, contents: Contents, joined: Join, mode: Any, order: Any
) -> None:
    with Loader(catalog, mode=mode, order=order) as loader:
        paths = [path for path, _ in loader]
        assert sorted(paths) == sorted(contents)
        assert files_of(loader) == contents, "a second pass gives the same"
    with Loader(catalog, mode=mode, order=order, deliver="objects", piece_bytes=7_000) as loader:
        pieces = list(loader)
        assert joined(pieces) == contents
        assert max(len(data) for _, _, data in pieces) == 7_000


def test_a_tree_is_loaded_without_a_catalog(tree: Path, contents: Contents) -> None:
    loader = Loader(tree, shuffle=False)
    assert [path for path, _ in loader] == sorted(contents, key=lambda path: os.path.split(os.fsencode(path)))
    assert loader.files.mode == "object"


def test_the_order_follows_from_seed_and_epoch_and_from_nothing_else(catalog: Path) -> None:
    def order(**options: Any) -> list[str]:
        return [path for path, _ in Loader(catalog, **options)]

    first = order(seed=1)
    assert first == order(seed=1, loaders=1, binding="strict", memory_bytes=1)
    assert sorted(first) == sorted(order(seed=2)) and first != order(seed=2)
    loader = Loader(catalog, seed=1)
    loader.set_epoch(1)
    again = [path for path, _ in loader]
    assert again == order(seed=1, epoch=1) and again != first


@pytest.mark.parametrize("deliver", ["files", "objects"])
@pytest.mark.parametrize("order", ["epoch", "arrival"])
def test_it_goes_on_exactly_where_it_was_left(
    catalog: Path, contents: Contents, joined: Join, deliver: Any, order: Any
) -> None:
    options: dict[str, Any] = {"deliver": deliver, "order": order, "seed": 5, "piece_bytes": 10_000}
    whole = list(Loader(catalog, **options))
    for taken in (0, 1, 17, 40, len(whole)):
        with Loader(catalog, **options) as left:
            iterator = iter(left)
            before = [next(iterator) for _ in range(taken)]
            state = json.loads(json.dumps(left.state_dict()))
        resumed = Loader(catalog, **options)
        resumed.load_state_dict(state)
        after = list(resumed)
        assert len(before) + len(after) == len(whole)
        if order == "epoch":
            assert [item[:-1] for item in before + after] == [item[:-1] for item in whole]
        if deliver == "files":
            assert {path: bytes(data) for path, data in before + after} == contents
        else:
            assert joined(before + after) == contents


def test_ranks_share_the_files_and_together_they_take_the_steps_of_one(catalog: Path) -> None:
    alone = [path for path, _ in Loader(catalog, seed=3)]
    ranks = [[path for path, _ in Loader(catalog, seed=3, rank=rank, world=3)] for rank in range(3)]
    assert [len(Loader(catalog, seed=3, rank=rank, world=3)) for rank in range(3)] == [len(r) for r in ranks]
    interleaved = [ranks[n % 3][n // 3] for n in range(len(alone))]
    assert interleaved == alone
    even = [[p for p, _ in Loader(catalog, rank=rank, world=4, uneven="drop")] for rank in range(4)]
    assert {len(paths) for paths in even} == {len(alone) // 4}


def test_ranks_share_objects_by_target(catalog: Path, contents: Contents, joined: Join) -> None:
    pieces = [
        piece
        for rank in range(3)
        for piece in Loader(catalog, deliver="objects", order="arrival", rank=rank, world=3, loaders=2)
    ]
    assert joined(pieces) == contents


def test_buffers_are_the_receivers_own(catalog: Path, contents: Contents) -> None:
    kept = dict(Loader(catalog, memory_bytes=4096))
    array = np.frombuffer(kept["large"], np.uint8)
    assert array.flags.writeable
    array[:] = 0
    rest = {path: bytes(data) for path, data in kept.items() if path != "large"}
    assert rest == {path: data for path, data in contents.items() if path != "large"}
    assert bytes(kept["large"]) == bytes(len(contents["large"]))


def test_what_changed_is_delivered_as_it_is_and_counted_and_refresh_repairs_it(
    tree: Path, catalog: Path, contents: Contents
) -> None:
    (tree / "large").write_bytes(b"now short")
    with open(tree / "d0/f000", "ab") as file:
        file.write(b"x" * 5000)
    expected = contents | {"large": b"now short", "d0/f000": contents["d0/f000"] + b"x" * 5000}
    loader = Loader(catalog, resized="deliver")
    assert files_of(loader) == expected
    assert (loader.counts()["checked"], loader.counts()["stale"]) == (len(contents), 2)
    paths, complete = loader.stale_paths()
    assert (sorted(paths), complete) == ([b"d0/f000", b"large"], True)
    refresh(catalog, stale=paths)
    fresh = Loader(catalog)
    assert files_of(fresh) == expected
    assert fresh.counts()["stale"] == 0


def test_a_file_that_changes_between_its_pieces_is_delivered_to_its_new_end(
    tree: Path, catalog: Path, joined: Join
) -> None:
    with open(tree / "large", "ab") as file:
        file.write(b"tail" * 100)
    loader = Loader(catalog, deliver="objects", piece_bytes=50_000, resized="deliver")
    assert joined(list(loader))["large"] == (tree / "large").read_bytes()


@pytest.mark.parametrize("deliver", ["files", "objects"])
@pytest.mark.parametrize("shape", ["catalog", "walked"])
def test_a_file_of_another_size_is_an_error_unless_it_is_to_be_delivered(
    tree: Path, catalog: Path, contents: Contents, joined: Join, deliver: Any, shape: str
) -> None:
    source: Any = catalog if shape == "catalog" else file_set(tree, "file")
    size = len(contents["large"])
    for now in (size - 1, 0, size // 2, size + 1):
        os.truncate(tree / "large", now)
        loader = Loader(source, on_error="skip", deliver=deliver, piece_bytes=50_000)
        got = dict(files_of(loader)) if deliver == "files" else joined(list(loader))
        assert got == {path: data for path, data in contents.items() if path != "large"}
        assert loader.counts()["resized"] == len(loader.failures()) >= 1
        for path, trouble, message in loader.failures():
            assert (path, trouble) == ("large", "resized")
            assert message.startswith(f"it has {now} bytes, and {size} were recorded")
        with pytest.raises(FileNotLoaded, match=f"large: it has {now} bytes"):
            list(Loader(source, deliver=deliver))
        given = Loader(source, deliver=deliver, piece_bytes=50_000, resized="deliver")
        taken = dict(files_of(given)) if deliver == "files" else joined(list(given))
        assert taken["large"] == (tree / "large").read_bytes()


def test_a_file_that_is_cut_off_while_its_pieces_are_read_is_an_error(
    tree: Path, catalog: Path, contents: Contents
) -> None:
    """The file is open from its first piece on, and memory for one piece keeps the others from being read ahead."""
    (tree / "only").mkdir()
    (tree / "only/file").write_bytes(contents["large"])
    loader = Loader(tree / "only", deliver="objects", piece_bytes=1000, memory_bytes=1, loaders=1)
    iterator = iter(loader)
    next(iterator)
    os.truncate(tree / "only/file", 5000)
    with pytest.raises(FileNotLoaded, match=r"file: it (was cut off while it was read|has 5000 bytes)"):
        list(iterator)


def test_what_cannot_be_read_is_raised_in_its_place_or_counted(
    tree: Path, catalog: Path, contents: Contents
) -> None:
    (tree / "large").unlink()
    (tree / "empty").unlink()
    (tree / "empty").mkdir()
    good = {path: data for path, data in contents.items() if path not in ("large", "empty")}

    skipping = Loader(catalog, on_error="skip")
    assert files_of(skipping) == good
    counts = skipping.counts()
    assert (counts["vanished"], counts["not_a_file"], counts["delivered"]) == (1, 1, len(contents))
    assert {(path, trouble) for path, trouble, _ in skipping.failures()} == {
        ("large", "vanished"),
        ("empty", "not_a_file"),
    }

    iterator = iter(Loader(catalog))
    got, raised = {}, {}
    while True:
        try:
            path, data = next(iterator)
            got[path] = bytes(data)
        except FileNotLoaded as error:
            raised[error.path] = str(error)
        except StopIteration:
            break
    assert got == good
    assert raised == {
        "large": "large: it is no longer there",
        "empty": "empty: it is no regular file any more",
    }


def test_a_link_put_in_the_way_leads_nowhere(tree: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (tree / "large").unlink()
    (tree / "large").symlink_to(tmp_path / "elsewhere")
    loader = Loader(catalog, on_error="skip")
    assert all(bytes(data) != b"secret" for _, data in loader)
    assert loader.counts()["not_a_file"] == 1


def test_a_file_that_outgrew_memory_is_refused_and_the_rest_arrives(
    tree: Path, catalog: Path, contents: Contents
) -> None:
    (tree / "empty").write_bytes(bytes(500_000))
    loader = Loader(catalog, memory_bytes=400_000, on_error="skip", resized="deliver")
    assert files_of(loader) == {path: data for path, data in contents.items() if path != "empty"}
    assert loader.counts()["grown"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 9}, "another seed"),
        ({"rank": 1, "world": 2}, "another rank"),
        ({"deliver": "objects"}, "another way of delivering"),
    ],
)
def test_a_state_of_another_share_is_refused(catalog: Path, change: dict[str, Any], words: str) -> None:
    state = Loader(catalog).state_dict()
    with pytest.raises(LoaderError, match=words):
        Loader(catalog, **change).load_state_dict(state)


def test_a_state_of_another_catalog_or_version_or_none_is_refused(tree: Path, catalog: Path) -> None:
    loader = Loader(catalog)
    state = loader.state_dict()
    with pytest.raises(LoaderError, match="another catalog or tree"):
        Loader(tree).load_state_dict(state)
    refresh(catalog)
    with pytest.raises(LoaderError, match="an older state of it"):
        Loader(catalog).load_state_dict(state)
    for damaged in ({}, state | {"version": 2}, state | {"runs": [[3, 1]]}, state | {"runs": "x"}):
        with pytest.raises(LoaderError):
            loader.load_state_dict(damaged)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 2, "world": 2},
        {"world": 0},
        {"memory_bytes": 0},
        {"loaders": 0},
        {"deliver": "bytes"},
        {"seed": -1},
        {"epoch": 2**64},
        {"mode": "nothing"},
        {"profile": "/nowhere"},
    ],
)
def test_options_that_cannot_be_are_refused_in_a_sentence(catalog: Path, options: dict[str, Any]) -> None:
    with pytest.raises(LoaderError, match=r"\w"):
        Loader(catalog, **options)


def test_an_empty_tree_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert list(Loader(tmp_path / "none")) == []


def test_a_catalog_serves_a_tree_elsewhere(tree: Path, catalog: Path, contents: Contents) -> None:
    moved = tree.with_name("moved")
    tree.rename(moved)
    with pytest.raises(OSError, match="tree"):
        list(Loader(catalog))
    assert files_of(Loader(catalog, tree=moved)) == contents


def test_files_of_a_catalog_are_filtered_from_all_it_has(catalog: Path, contents: Contents) -> None:
    assert Catalog(catalog).rows > len(contents), "it has directories and a link besides"
    assert len(Loader(catalog)) == len(contents)


OTHER_USER = 65534


def test_a_file_that_may_not_be_read_is_counted_as_unreadable() -> None:
    with tempfile.TemporaryDirectory(prefix="waystage-unreadable-") as folder:
        os.chmod(folder, 0o755)
        root = Path(folder) / "tree"
        root.mkdir()
        (root / "open").write_bytes(b"x")
        (root / "shut").write_bytes(b"y")
        os.chmod(root / "shut", 0)
        loader = Loader(root, on_error="skip")
        was = os.geteuid()
        if was == 0:
            os.seteuid(OTHER_USER)
        try:
            assert files_of(loader) == {"open": b"x"}
        finally:
            os.seteuid(was)
        assert loader.counts()["unreadable"] == 1
        assert loader.failures() == [("shut", "unreadable", "Permission denied")]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    key=st.sampled_from(["version", "files", "epoch", "runs", "parts", "seed"]),
    value=ANYTHING | st.lists(st.tuples(st.integers(), st.lists(st.integers(), max_size=2)), max_size=2),
)
def test_a_damaged_state_is_refused_or_harmless(key: str, value: Any) -> None:
    loader = Loader(SMALL.files)
    state = loader.state_dict() | {key: value}
    try:
        loader.load_state_dict(state)
    except LoaderError:
        return
    assert len(list(loader)) <= 2


@given(st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_profile_is_refused(data: bytes) -> None:
    file = SMALL.root.parent / "profile.json"
    file.write_bytes(data)
    with pytest.raises(LoaderError):
        Profile.load(file)


class _Small:
    """Two files, for tests that run many times; made once, gone with the process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="waystage-small-")
        self.root = Path(self._folder.name) / "tree"
        self.root.mkdir()
        for name in ("a", "b"):
            (self.root / name).write_bytes(name.encode())
        self.files = file_set(self.root)


SMALL = _Small()


@pytest.mark.parametrize(
    "number", ["Infinity", "-1", "NaN", "1e99", "4294967296", "[" * 5000, "null", '"many"']
)
def test_a_profile_with_numbers_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, number: str) -> None:
    file = tmp_path / "targets.json"
    Profile(4, [(1, 1.0)]).save(file)
    file.write_text(file.read_text().replace('"best_loaders": 4', f'"best_loaders": {number}'))
    with pytest.raises(LoaderError, match=r"targets\.json is no profile of this version: make one"):
        Profile.load(file)


FORKING = """
import os, signal, sys, time
from waystage.loader import Loader
loader = Loader(sys.argv[1])
for turn in range(120):
    next(iter(loader))
    child = os.fork()
    if child == 0:
        os._exit(sum(1 for _ in loader) != int(sys.argv[2]))
    until = time.monotonic() + float(sys.argv[3])
    ended, status = 0, 0
    while not ended and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0 if ended else 0.002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if (ended, status) != (child, 0):
        sys.exit(f"child {turn + 1} hangs, or has not read all: {status}")
"""


def test_a_process_that_is_forked_while_threads_read_reads_too(catalog: Path, contents: Contents) -> None:
    """As PyTorch forks workers: what other threads did at that moment is of no account."""
    words = [sys.executable, "-c", FORKING, str(catalog), str(len(contents)), str(WAIT_S)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
