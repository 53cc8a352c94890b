"""`waystage copy --remove-source` between hosts: a file goes only when the other host holds it, and none is ever lost."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from harness import WAIT_S, wait_until
from remote_copy_support import Site, peer, server_here
from waystage._native import CopyError, SourceRemove, WanError
from waystage.native_options.copies import FileLimits, RemoveOptions

BOTH = pytest.mark.parametrize("push", [True, False], ids=["to the server", "from the server"])


class Trees:
    """A source and its destination, one of them at the server, which may write at both."""

    def __init__(self, site: Site, push: bool) -> None:
        self.site, self.push = site, push
        here, there = site.folder / "here", site.data / "tree"
        self.source, self.destination = (here, there) if push else (there, here)
        self.source.mkdir()

    def put(self, name: str, content: bytes = b"content") -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def words(self, source: object, destination: object) -> tuple[object, object]:
        far = f"ada@127.0.0.1:{destination if self.push else source}"
        return (source, far) if self.push else (far, destination)

    def ends(self) -> tuple[object, object]:
        return self.words(self.source, self.destination)

    def removal(self, **options: object) -> SourceRemove:
        local, remote = (self.source, self.destination) if self.push else (self.destination, self.source)
        more = RemoveOptions(workers=2, **options)  # type: ignore[arg-type]
        return SourceRemove.between(local, os.fsencode(remote), peer(self.site), more, push=self.push)

    def removed(self, **options: object) -> dict[bytes, str]:
        """What stays at the source, and why."""
        with server_here(self.site), self.removal(**options) as task:
            assert task.wait(WAIT_S)
            return {path: text for path, _, text in task.problems()}


def names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_symlink() or not path.is_dir()}


@BOTH
def test_files_are_moved_and_directories_stay(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    contents = {"x": b"x" * 70_000, "dir/y": b"y", "dir/line\nbreak": b"", "large": os.urandom(9 << 20)}
    for name, content in contents.items():
        trees.put(name, content)
    os.link(trees.source / "x", trees.source / "dir/second")
    (trees.source / "link").symlink_to("x")
    trees.put("kept.tmp")
    site.serve()
    log = site.folder / "items"
    ran = site.copy(*trees.ends(), "--remove-source", "--exclude", "*.tmp", "--log-file", log).expect()
    assert ran.json["counts"]["removed"] == len(contents) + 2, ran
    assert names(trees.source) == {"kept.tmp"} and (trees.source / "dir").is_dir()
    assert {name: (trees.destination / name).read_bytes() for name in contents} == contents
    assert os.readlink(trees.destination / "link") == "x"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line["what"] == "removed" for line in lines) == len(contents) + 2
    if not push:
        wait_until(lambda: "copied files of" in site.log(), what="the line of the log")
    # A second file of a later run; what is at the destination by now is neither missed nor read.
    trees.put("later")
    assert site.copy(*trees.ends(), "--remove-source", "-x", "*.tmp").expect().json["counts"]["removed"] == 1
    assert names(trees.destination) == {*contents, "later", "link", "dir/second"}


@BOTH
def test_a_single_file_is_moved_under_its_name_or_a_new_one(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    trees.destination.mkdir()
    one, two, three = (trees.put(name, name.encode()) for name in ("one", "two", "three"))
    site.serve()
    for source, destination in (
        (one, trees.destination),
        (two, trees.destination / "renamed"),
        (three, f"{trees.destination}/new/"),
    ):
        site.copy(*trees.words(source, destination), "--remove-source").expect()
    assert names(trees.source) == set()
    found = {name: (trees.destination / name).read_text() for name in ("one", "renamed", "new/three")}
    assert found == {"one": "one", "renamed": "two", "new/three": "three"}


@BOTH
def test_a_dry_run_counts_and_removes_nothing(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    for name in ("x", "dir/y"):
        trees.put(name)
    site.serve()
    ran = site.copy(*trees.ends(), "--remove-source", "-n").expect()
    assert ran.json["counts"]["removed"] == 2, ran
    assert names(trees.source) == {"x", "dir/y"} and not trees.destination.exists()


@BOTH
def test_only_what_the_destination_holds_is_removed(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    for name in ("good", "damaged", "longer", "missing", "type", "young", "dir/deep"):
        trees.put(name)
    trees.destination.mkdir()
    for name, content in (
        ("good", b"content"),
        ("damaged", b"contenT"),
        ("longer", b"content."),
        ("young", b"content"),
    ):
        (trees.destination / name).write_bytes(content)
    (trees.destination / "type").symlink_to("good")
    # What is behind a link is no copy.
    outside = site.folder / "outside"
    outside.mkdir()
    (outside / "deep").write_bytes(b"content")
    (trees.destination / "dir").symlink_to(outside)
    os.utime(trees.source / "young", (4e9, 4e9))
    stay = trees.removed(limits=FileLimits(until=3_000_000_000))
    assert set(stay) == {b"damaged", b"longer", b"missing", b"type", b"dir/deep"}
    assert names(trees.source) == {name.decode() for name in stay} | {"young"}
    assert stay[b"damaged"] == "stays at the source: the destination holds other contents"
    assert stay[b"missing"] == "stays at the source: the destination lacks it"
    assert (outside / "deep").exists()


@BOTH
def test_a_source_that_is_its_own_destination_stays(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    trees.put("x")
    trees.put("dir/y")
    # Another path to the same files, as two hosts have them on one file system.
    if push:
        trees.source.rename(site.data / "tree")
        trees.source = site.data / "tree"
    else:
        trees.destination = trees.source
    stay = trees.removed()
    assert set(stay) == {b"x", b"dir/y"} and "may be one file" in stay[b"x"]
    assert names(trees.source) == {"x", "dir/y"}


def test_a_server_removes_only_where_the_user_may_write(site: Site) -> None:
    trees = Trees(site, push=False)
    trees.source = site.given / "tree"
    trees.put("x")
    site.serve()
    ran = site.copy(*trees.ends(), "--remove-source")
    assert ran.code != 0 and "may only be read" in ran.out + ran.err, ran
    assert (trees.source / "x").exists() and (trees.destination / "x").read_bytes() == b"content"
    for path in (site.data / "../given/tree", site.folder / "home"):
        trees.source = path
        with server_here(site), trees.removal() as task, pytest.raises((CopyError, WanError)):
            task.wait(WAIT_S)
    assert (site.given / "tree/x").exists()


@BOTH
def test_an_incomplete_copy_removes_nothing(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    trees.put("x")
    trees.put("y")
    (trees.destination / "y").mkdir(parents=True)
    site.serve()
    ran = site.copy(*trees.ends(), "--remove-source")
    assert ran.code == 8 and "the copy is not complete, so nothing was removed" in ran.out + ran.err, ran
    assert names(trees.source) == {"x", "y"}


@BOTH
def test_a_file_that_changes_while_it_is_compared_stays(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    size = 64 << 20
    path = trees.put("big", b"\0" * size)
    trees.destination.mkdir()
    (trees.destination / "big").write_bytes(b"\0" * size)
    with server_here(site), trees.removal() as task:
        before = path.stat()
        while not task.wait(0):
            if path.exists():
                # The same contents and time of change, at another moment.
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        stay = {name: text for name, _, text in task.problems()}
    # However the moments fell: it is gone whole, or it stays and says why.
    assert path.exists() == (b"big" in stay)
    assert set(stay.values()) <= {"stays at the source: it was changed while it was compared"}
    assert (trees.destination / "big").stat().st_size == size


def is_time(trees: Trees, left: int, more: int) -> bool:
    """Whether fewer files than `left` are at the source or more than `more` at the destination."""
    try:
        return len(names(trees.source)) < left or len(names(trees.destination)) > more
    except OSError:
        return False


def content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@BOTH
@pytest.mark.parametrize("victim", ["client", "server"])
def test_no_file_is_lost_whichever_end_is_killed_and_when(site: Site, push: bool, victim: str) -> None:
    trees = Trees(site, push)
    contents = {f"{number % 7}/{number}": os.urandom(1 + number * 37) for number in range(600)}
    for name, content in contents.items():
        trees.put(name, content)
    site.serve()
    count = len(contents)
    moments = random.Random(1)
    for _ in range(6):
        process = site.begin(*trees.ends(), "--remove-source")
        # Once more has come over, or more is gone, than a chosen number: in the copy, and in the removal.
        held = len(names(trees.destination)) if trees.destination.exists() else 0
        left = count - moments.randrange(count)
        more = held + moments.randrange(1, count)

        wait_until(
            lambda now=process, left=left, more=more: now.poll() is not None or is_time(trees, left, more)
        )
        if victim == "client":
            process.kill()
        elif process.poll() is None:
            site.end(signal.SIGKILL)
        process.communicate(timeout=WAIT_S)
        for name, content in contents.items():
            # The source first: after the client's end the server may still remove files that have come over.
            found = [content_of(top / name) for top in (trees.source, trees.destination)]
            assert set(found) - {None} == {content}, name
        if victim == "server" and site.process is not None and site.process.poll() is not None:
            site.serve()
    site.copy(*trees.ends(), "--remove-source").expect()
    assert names(trees.source) == set() and names(trees.destination) == set(contents)
