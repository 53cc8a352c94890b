"""`waystage restripe` on the emulated striped file system: what a file is afterwards, and what it never is meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from copying_trees import Snapshot, make_everything, snapshot
from flow_support import Heard
from harness import WAIT_S, Ran
from pfs_support import FAST
from waystage import events
from waystage._native import read_layout
from waystage.catalog import Catalog, build
from waystage.flows.agent import FlowAgent
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs import mounts

pytestmark = pytest.mark.lab

Run = Callable[..., Ran]
JOURNAL = ".waystage-copy-77617973746167652d72657374726970"
LAYOUT = "stripes=3,stripe_size=128Ki"
PIECE = 1 << 20
"""What is copied at once. Before the first piece, another temporary file of one byte tries the file system."""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """An emulated file system of four targets, on a folder of files."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting the emulated file system needs root and /dev/fuse")
    point, folder = tmp_path / "point", tmp_path / "folder"
    point.mkdir()
    folder.mkdir()
    (tmp_path / "shape.yaml").write_text(FAST)
    pfs.mount(point, pfs.load(tmp_path / "shape.yaml"), folder=folder)
    yield point
    for made in pfs.mounted():
        if made.point == str(point):
            pfs.unmount(point, force=True)
    while mounts.is_mounted(point):
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_a_restriping_is_a_flow_of_its_job(
    tree: Path, waystage: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_bytes(b"x" * 1_000_000)
    heard = Heard()
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "flows.sock"))
    with FlowAgent("n1", tmp_path / "flows.sock", heard.queue.put):
        waystage("restripe", str(tree), "--layout", LAYOUT, "--job", "4711").expect()
        started = heard.next(events.FlowStarted)
        assert (started.engine, started.traffic, started.job_id) == ("restripe", "io", "4711")
        assert heard.next(events.FlowFinished).bytes_done >= 1_000_000


def stripes_of(path: Path | bytes) -> int:
    layout = read_layout(Path(os.fsdecode(path)))
    assert layout is not None
    component = layout["components"][0]
    return int(component["stripe_count"])


def facts(tree: Path) -> Snapshot:
    """Everything that restriping keeps: not the layout, which a client lists as an attribute."""
    return {
        path: (*rest, [pair for pair in xattrs if pair[0] != "lustre.lov"])
        for path, (*rest, xattrs) in snapshot(tree).items()
    }


def leftovers(top: Path) -> list[str]:
    return [
        name for _, folders, files in os.walk(top) for name in folders + files if name.startswith(".waystage")
    ]


@pytest.mark.parametrize("verify", [[], ["--verify"], ["--verify", "--from-storage"]])
def test_a_restriped_tree_differs_in_nothing_but_its_stripes(
    tree: Path, waystage: Run, verify: list[str]
) -> None:
    make_everything(tree)
    # FUSE's library moves times before 1970 between two reads of them.
    os.utime(tree / "a/secret", ns=(3, 1_000_000_007))
    os.utime(tree / "a", ns=(1, 1_234_567_890_123_456_791))
    before = facts(tree)
    done = waystage("restripe", tree, "--layout", LAYOUT, "--json", *verify).expect().json
    after = facts(tree)
    assert after == before
    assert leftovers(tree) == []
    assert done["complete"] and done["counts"]["files"] > 8
    assert done["counts"]["verified"] == (done["counts"]["files"] if verify else 0)
    names = [tree / "a/holes", tree / "a/b/c/second name", tree / "first name"]
    assert len({name.stat().st_ino for name in names}) == 1
    assert {stripes_of(name) for name in [*names, tree / "a/secret", tree / "a/nothing"]} == {3}
    again = waystage("restripe", tree, "--layout", LAYOUT, "--json").expect().json
    assert again["counts"]["files"] == 0 and again["counts"]["same"] == done["counts"]["files"] + 2


def test_sizes_have_their_own_layouts_and_progressive_ones_their_parts(tree: Path, waystage: Run) -> None:
    (tree / "small").write_bytes(b"s" * 1000)
    (tree / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    (tree / "excluded").write_bytes(b"e" * 3_000_000)
    layouts = tree.parent / "layouts.yaml"
    layouts.write_text(
        "format: waystage-layouts\nversion: 1\nclasses:\n"
        "  - {most: 100Ki, layout: stripes=2}\n"
        "  - {layout: 'to=1Mi,stripes=1/stripes=all,stripe_size=256Ki'}\n"
    )
    waystage("restripe", tree, "--layout", layouts, "-x", "exc*").expect()
    assert stripes_of(tree / "small") == 2 and stripes_of(tree / "excluded") == 1
    layout = read_layout(tree / "large")
    assert layout is not None
    found = [(c["end"], c["stripe_count"], c["stripe_size"]) for c in layout["components"]]
    assert found == [(1 << 20, 1, 1 << 20), (None, 4, 256 << 10)]
    assert (tree / "large").read_bytes() == random.Random(1).randbytes(3_000_000)


def test_a_dry_run_names_files_and_changes_none(tree: Path, waystage: Run) -> None:
    (tree / "file").write_bytes(b"x" * 500)
    before = (tree / "file").stat()
    folder = tree.stat()
    dry = waystage("restripe", tree, "--layout", LAYOUT, "--dry-run", "--json").expect().json
    assert [one["path"] for one in dry["planned"]] == ["file"] and dry["counts"]["files"] == 1
    assert (tree / "file").stat() == before and tree.stat().st_mtime_ns == folder.st_mtime_ns


def test_a_file_that_is_open_for_writing_is_left_and_reported(tree: Path, waystage: Run) -> None:
    (tree / "free").write_bytes(b"free")
    (tree / "open").write_bytes(b"open")
    with (tree / "open").open("r+b") as held:
        inode = os.fstat(held.fileno()).st_ino
        done = waystage("restripe", tree, "--layout", LAYOUT, "--json").expect(8).json
        assert [(one["path"], one["kind"]) for one in done["problems"]] == [("open", "changed")]
        assert "open for writing" in done["problems"][0]["text"]
        assert (tree / "open").stat().st_ino == inode and stripes_of(tree / "free") == 3
    waystage("restripe", tree, "--layout", LAYOUT).expect()
    assert stripes_of(tree / "open") == 3


def test_a_writer_that_comes_meanwhile_finds_its_file(tree: Path, waystage: Run) -> None:
    """It waits for the restriping to give up, and its bytes are in the file that has the name."""
    (tree / "file").write_bytes(random.Random(2).randbytes(30_000_000))
    running = start(tree, "--bandwidth-limit", "1M")
    try:
        wait_for(lambda: written(tree) >= PIECE)
        with (tree / "file").open("r+b") as file:
            file.write(b"written meanwhile")
        _, errors = running.communicate(timeout=WAIT_S)
    finally:
        running.kill()
    assert running.returncode == 8, errors
    assert (tree / "file").read_bytes()[:17] == b"written meanwhile"
    assert (tree / "file").stat().st_size == 30_000_000 and leftovers(tree) == []


def test_hard_links_outside_the_tree_are_not_cut_off(tree: Path, waystage: Run) -> None:
    (tree / "inside").mkdir()
    (tree / "inside/file").write_bytes(b"shared")
    os.link(tree / "inside/file", tree / "outside")
    done = waystage("restripe", tree / "inside", "--layout", LAYOUT, "--json").expect(8).json
    assert "hard links outside" in done["problems"][0]["text"]
    assert (tree / "inside/file").stat().st_ino == (tree / "outside").stat().st_ino


def test_the_catalog_knows_the_new_inodes(tree: Path, waystage: Run) -> None:
    (tree / "sub").mkdir()
    (tree / "sub/file").write_bytes(b"f" * 300_000)
    catalog = tree.parent / "catalog"
    build(tree, catalog)
    waystage("restripe", tree, "--layout", LAYOUT, "--catalog", catalog).expect()
    waystage("catalog", "verify", catalog).expect()
    rows = [row for batch in Catalog(catalog).batches(["name", "inode"]) for row in batch.to_pylist()]
    assert {"name": b"file", "inode": (tree / "sub/file").stat().st_ino} in rows


def test_two_at_once_and_a_copy_beside_it(tree: Path, waystage: Run, tmp_path: Path) -> None:
    (tree / "file").write_bytes(b"x" * 60_000_000)
    running = start(tree, "--bandwidth-limit", "1M")
    try:
        wait_for(lambda: written(tree) >= PIECE)
        busy = waystage("restripe", tree, "--layout", LAYOUT).expect(6)
        assert "being restriped by another process" in busy.err
        # What restriping makes for itself is no file of the user's.
        waystage("copy", tree, tmp_path / "copy").expect()
        assert [path.name for path in (tmp_path / "copy").rglob("*")] == ["file"]
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=WAIT_S)
    assert running.returncode == 130 and leftovers(tree) == [JOURNAL]
    waystage("restripe", tree, "--layout", LAYOUT).expect()
    assert leftovers(tree) == []


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("stripes=0", "give 1 to 65503, or all"),
        ("stripes=4,stripe_size=1000", "stripe_size"),
        ("to=4Mi,stripes=1", "`to` in every part but the last"),
        ("stripes=2,pool=absent", "refuses this layout"),
        ("/absent.yaml", "cannot be read"),
    ],
)
def test_layouts_that_cannot_be_are_refused_in_one_sentence(
    tree: Path, waystage: Run, layout: str, words: str
) -> None:
    (tree / "file").write_bytes(b"x")
    refused = waystage("restripe", tree, "--layout", layout).expect(3)
    assert words in refused.err and len(refused.err.strip().splitlines()) == 1
    assert leftovers(tree) in ([], [JOURNAL])


def test_a_file_system_without_stripes_is_named(tmp_path: Path, waystage: Run) -> None:
    (tmp_path / "file").write_bytes(b"x")
    refused = waystage("restripe", tmp_path, "--layout", LAYOUT).expect(3)
    assert "lets no client choose stripes" in refused.err and leftovers(tmp_path) == []


def start(tree: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "waystage", "restripe", str(tree), "--layout", LAYOUT, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def written(tree: Path) -> int:
    """Bytes of the temporary file that is filled; it may be renamed between its listing and its stat."""
    sizes = []
    for path in tree.glob("*.part"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes, default=0)


def wait_for(condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextmanager
def killed(tree: Path, after_s: float) -> Iterator[None]:
    running = start(tree, "--workers", "3")
    time.sleep(after_s)
    running.kill()
    running.communicate()
    yield


def test_killed_at_any_moment_each_file_is_its_old_or_its_new_self(tree: Path, waystage: Run) -> None:
    rng = random.Random(3)
    for number in range(5):
        (tree / f"d{number}").mkdir()
    for number in range(60):
        path = tree / f"d{number % 5}" / f"f{number}"
        path.write_bytes(rng.randbytes(rng.choice([0, 10, 5_000, 400_000])))
        os.utime(path, ns=(number, 1_000_000_000 + number))
        for link in range(number % 4):
            os.link(path, tree / f"d{(number + link) % 5}" / f"l{number}-{link}")
    before = {p.relative_to(tree): facts_of(p) for p in tree.rglob("*") if p.is_file()}
    groups = groups_of(tree)
    for turn in range(12):
        # From the start of Python to past the end.
        with killed(tree, 0.25 + turn * 0.05):
            now = {p.relative_to(tree): facts_of(p) for p in tree.rglob("*") if is_users(p)}
            assert now == before
    waystage("restripe", tree, "--layout", LAYOUT).expect()
    assert {p.relative_to(tree): facts_of(p) for p in tree.rglob("*") if p.is_file()} == before
    assert groups_of(tree) == groups and leftovers(tree) == []
    assert {stripes_of(p) for p in tree.rglob("*") if p.is_file()} == {3}


def is_users(path: Path) -> bool:
    return path.is_file() and ".waystage-copy" not in str(path)


def facts_of(path: Path) -> tuple[object, ...]:
    stat = path.stat()
    return (stat.st_mode, stat.st_uid, stat.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())


def groups_of(tree: Path) -> set[frozenset[Path]]:
    found: dict[int, set[Path]] = {}
    for path in tree.rglob("*"):
        if is_users(path):
            found.setdefault(path.stat().st_ino, set()).add(path.relative_to(tree))
    return {frozenset(names) for names in found.values()}


def test_a_lock_of_the_users_does_not_hold_it_up(tree: Path, waystage: Run) -> None:
    (tree / "file").write_bytes(b"locked")
    with (tree / "file").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waystage("restripe", tree, "--layout", LAYOUT).expect()
    assert stripes_of(tree / "file") == 3
