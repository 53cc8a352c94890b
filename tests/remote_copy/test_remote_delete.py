"""`waystage copy --delete` between hosts: only after a complete copy, only below the destination, with the server's rights."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness import WAIT_S, Ran, wait_until
from remote_copy_support import Site, peer, server_here
from waystage._native import CopyError, TreeDelete, WanError
from waystage.native_options.copies import DeleteOptions

BOTH = pytest.mark.parametrize("push", [True, False], ids=["to the server", "from the server"])

OLD = ("old", "line\nbreak", "gone/deep/file", "gone/other", "dir/old", "-rf", "kept.tmp", "kept/below.tmp")


class Trees:
    """A source and its destination, one of them at the server."""

    def __init__(self, site: Site, push: bool) -> None:
        self.site, self.push = site, push
        here, there = site.folder / "here", (site.data if push else site.given) / "tree"
        self.source, self.destination = (here, there) if push else (there, here)
        for name in ("x", "dir/y"):
            self.put(self.source / name)
        self.remote = f"ada@127.0.0.1:{there}"
        self.words = (here, self.remote) if push else (self.remote, here)

    def put(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")

    def add_old(self) -> None:
        for name in OLD:
            self.put(self.destination / name)
        outside = self.site.folder / "outside"
        self.put(outside / "stays")
        (self.destination / "link").symlink_to(outside)
        (self.destination / "dangling").symlink_to("nowhere")
        os.mkfifo(self.destination / "dir/fifo")

    def copy(self, *words: object) -> Ran:
        return self.site.copy(*self.words, *words)

    @property
    def names(self) -> set[str]:
        return {str(path.relative_to(self.destination)) for path in self.destination.rglob("*")}

    def deletion(self, options: DeleteOptions | None = None) -> TreeDelete:
        ends = (self.source, self.destination) if self.push else (self.destination, self.source)
        options = options or DeleteOptions(workers=1)
        return TreeDelete.between(ends[0], os.fsencode(ends[1]), peer(self.site), options, push=self.push)


@BOTH
def test_the_destination_becomes_like_the_source(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    site.serve()
    trees.copy("--delete").expect()
    trees.add_old()
    log = site.folder / "items"
    ran = trees.copy("--delete", "--exclude", "*.tmp", "--log-file", log).expect()
    assert trees.names == {"x", "dir", "dir/y", "kept.tmp", "kept", "kept/below.tmp"}
    assert (site.folder / "outside/stays").exists()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    gone = {line["path"] for line in lines if line["what"] == "deleted"}
    wanted = {"old", "line\nbreak", "gone/deep/file", "gone/other", "dir/old", "-rf", "link", "dangling"}
    wanted |= {"dir/fifo", "gone", "gone/deep"}
    # A path with a line break is shown on one line.
    assert gone - wanted == {next(path for path in gone if path.startswith("line"))}
    assert ran.json["counts"]["deleted"] == len(gone) == len(wanted), ran
    if push:
        wait_until(lambda: "deleted" in site.log(), what="the line of the log")
    assert trees.copy("--delete", "--exclude", "*.tmp").json["counts"]["deleted"] == 0


@BOTH
def test_a_dry_run_lists_what_would_go(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    site.serve()
    assert trees.copy("--delete", "-n").expect().json["would_delete"] == []
    assert not trees.destination.exists()
    trees.copy().expect()
    before = trees.names
    trees.add_old()
    added = trees.names - before
    ran = trees.copy("--delete", "-n").expect()
    assert len(ran.json["would_delete"]) == ran.json["counts"]["deleted"] == len(added)
    assert trees.names == before | added


@BOTH
def test_more_than_max_delete_and_an_incomplete_copy_delete_nothing(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    site.serve()
    trees.copy().expect()
    trees.add_old()
    before = trees.names
    ran = trees.copy("--delete", "--max-delete", 3)
    assert ran.code == 8 and "more than --max-delete allows: nothing was deleted" in ran.out + ran.err, ran
    # A directory is where a file is to be.
    trees.put(trees.source / "kept")
    ran = trees.copy("--delete")
    assert ran.code == 8 and "the copy is not complete, so nothing was deleted" in ran.out + ran.err, ran
    assert trees.names == before
    (trees.source / "kept").unlink()
    trees.copy("--delete", "--max-delete", len(before)).expect()
    assert trees.names == {"x", "dir", "dir/y"}


def test_links_that_lead_nowhere_keep_what_they_led_to(site: Site) -> None:
    trees = Trees(site, push=True)
    site.serve()
    target = site.folder / "target"
    trees.put(target / "file")
    (trees.source / "link").symlink_to(target)
    trees.copy("-L").expect()
    trees.put(trees.destination / "link/old")
    assert trees.copy("-L", "--delete").expect().json["counts"]["deleted"] == 1
    target.rename(site.folder / "elsewhere")
    ran = trees.copy("-L", "--delete")
    assert ran.code == 8 and (trees.destination / "link/file").exists()


def test_a_source_that_is_not_there_lacks_nothing(site: Site) -> None:
    trees = Trees(site, push=False)
    trees.put(trees.destination / "old")
    trees.source.rename(site.folder / "elsewhere")
    with server_here(site), trees.deletion() as task, pytest.raises(CopyError, match="No such file"):
        task.wait(WAIT_S)
    trees.put(trees.source)
    with server_here(site), trees.deletion() as task, pytest.raises(CopyError):
        task.wait(WAIT_S)
    assert (trees.destination / "old").exists()


def test_a_server_deletes_only_where_the_user_may_write(site: Site) -> None:
    trees = Trees(site, push=True)
    for name in ("x", "old"):
        trees.put(site.given / "tree" / name)
    trees.destination = site.given / "tree"
    with server_here(site), trees.deletion() as task, pytest.raises((CopyError, WanError)):
        task.wait(WAIT_S)
    assert trees.names == {"x", "old"}
    for path in (site.data / "../given", site.folder):
        trees.destination = path
        with server_here(site), trees.deletion() as task, pytest.raises((CopyError, WanError)):
            task.wait(WAIT_S)
    assert (site.given / "tree/old").exists()


@contextmanager
def flipping(place: Path, target: Path, aside: Path) -> Iterator[None]:
    """A directory that is a symbolic link to `target` at every other moment."""
    link, stop = aside.with_name("link"), threading.Event()
    link.symlink_to(target)

    def flip() -> None:
        while not stop.is_set():
            # The link, and the directory once it is empty, may be deleted at any moment.
            with suppress(OSError):
                place.rename(aside)
                link.rename(place)
            # Long enough to be met, short enough to be met in a deletion's middle.
            time.sleep(0.0005)
            with suppress(OSError):
                place.rename(link)
            if not os.path.lexists(link):
                link.symlink_to(target)
            with suppress(OSError):
                aside.rename(place)
            time.sleep(0.0005)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        link.unlink(missing_ok=True)
        shutil.rmtree(aside, ignore_errors=True)


@pytest.mark.parametrize("way", ["local", "push"])
def test_nothing_is_deleted_through_a_link_that_is_put_in_its_way(site: Site, way: str) -> None:
    trees = Trees(site, push=True)
    outside = site.folder / "outside"
    for number in range(300):
        trees.put(outside / f"dir{number % 60}/old{number}")
    with server_here(site):
        for _ in range(10):
            for number in range(300):
                trees.put(trees.destination / f"swapped/dir{number % 60}/old{number}")
            with flipping(trees.destination / "swapped", outside, site.folder / "aside"):
                if way == "local":
                    task = TreeDelete(trees.source, trees.destination, DeleteOptions(workers=4))
                else:
                    task = trees.deletion()
                with task:
                    assert task.wait(WAIT_S)
    assert len(list(outside.glob("dir*/old*"))) == 300


@BOTH
def test_a_deletion_that_was_killed_is_completed_by_the_same_command(site: Site, push: bool) -> None:
    trees = Trees(site, push)
    site.serve()
    trees.copy().expect()
    for number in range(3000):
        trees.put(trees.destination / f"gone/{number % 7}/{number}")
    process = site.begin(*trees.words, "--delete")

    def files() -> int:
        """However many directories vanish meanwhile."""
        return sum(len(names) for _, _, names in os.walk(trees.destination))

    wait_until(lambda: process.poll() is not None or files() < 3000)
    process.kill()
    process.communicate()
    trees.copy("--delete").expect()
    assert trees.names == {"x", "dir", "dir/y"}


def test_a_file_is_no_source_of_a_deletion(site: Site) -> None:
    trees = Trees(site, push=False)
    trees.put(trees.destination / "old")
    site.serve()
    ran = site.copy(f"{trees.remote}/x", trees.destination, "--delete")
    assert ran.code != 0 and (trees.destination / "old").exists(), ran
    ran = site.copy(site.folder / "client.key", f"ada@127.0.0.1:{site.data}", "--delete")
    assert ran.code == 2 and "give a single SRC that is a directory" in ran.out + ran.err
