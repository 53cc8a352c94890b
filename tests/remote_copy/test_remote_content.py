"""`--update content` between hosts: what is alike stays, and only parts that differ cross the path."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from copying_trees import leftovers, snapshot
from harness import wait_until
from remote_copy_support import Middlebox, Site, parts_written

PART = 4 << 20
THEN = 10**18


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(THEN, THEN))


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_only_what_differs_is_sent(site: Site, tmp_path: Path, push: bool) -> None:
    tree, copy = (tmp_path / "tree", site.data / "copy") if push else (site.given / "tree", tmp_path / "copy")
    chance = random.Random(5)
    large = chance.randbytes(5 * PART + 100)
    for root in (tree, copy):
        write(root / "sub/same", b"the same")
        write(root / "sub/other", b"THE same" if root == copy else b"the same")
        write(root / "longer", b"longer than before" if root == tree else b"longer")
        write(root / "large", large)
        write(root / "alike", large)
        write(root / "grown", large[: 3 * PART] if root == copy else large)
        write(root / "shrunk", large if root == copy else large[: 3 * PART + 5])
        with (root / "holes").open("wb") as file:
            file.truncate(4 * PART)
    # Of the same size and time, and another byte in one part; zeros where there are holes.
    with (copy / "large").open("r+b") as file:
        file.seek(2 * PART + 7)
        file.write(b"\0\1\2")
    os.utime(copy / "large", ns=(THEN, THEN))
    (copy / "holes").write_bytes(bytes(4 * PART))
    (copy / "sub/same").chmod(0o600)
    inodes = {path.name: path.stat().st_ino for path in copy.rglob("*")}
    site.serve()
    ends = (tree, f"127.0.0.1:{copy}") if push else (f"127.0.0.1:{tree}", copy)
    ran = site.copy(*ends, "--update", "content").expect()
    counts = ran.json["counts"]
    # One part of `large`, the rest of `grown`, nothing of `shrunk`, and two small files.
    assert counts["bytes"] == PART + (2 * PART + 100) + len(b"the same") + len(b"longer than before"), counts
    replaced = {path.name for path in copy.rglob("*") if inodes.get(path.name) != path.stat().st_ino}
    assert replaced == {"other", "longer", "large", "grown", "shrunk"}
    assert (counts["files"], counts["same"], counts["mended"]) == (5, 2, 1)
    there, wanted = snapshot(copy, times=False), snapshot(tree, times=False)
    assert there == wanted
    assert leftovers(copy) == []
    ran = site.copy(*ends, "--update", "content").expect()
    again = ran.json["counts"]
    assert (again["files"], again["bytes"], again["same"]) == (0, 0, 8)


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_digests_may_overtake_the_answers_that_want_them(site: Site, tmp_path: Path, push: bool) -> None:
    tree, copy = (tmp_path / "tree", site.data / "copy") if push else (site.given / "tree", tmp_path / "copy")
    for root in (tree, copy):
        for number in range(1200):
            write(root / f"{number % 40}/small{number}", b"the same")
        for number in range(40):
            write(root / f"{number}/large", b"")
            os.truncate(root / f"{number}/large", PART + number + (root == tree))
    chance = random.Random(7)

    def mangle(datagram: bytes, to_server: bool) -> list[bytes]:
        """Of what the receiver says, a third is lost at first."""
        return [] if to_server != push and chance.random() < 1 / 3 else [datagram]

    site.serve()
    with Middlebox(site.port, mangle) as box:
        ends = (tree, f"127.0.0.1:{copy}") if push else (f"127.0.0.1:{tree}", copy)
        ran = site.copy(*ends, "--update", "content", port=box.port)
    assert ran.code == 0, ran
    assert (ran.json["counts"]["same"], ran.json["counts"]["files"]) == (1200, 40)
    assert snapshot(copy, times=False) == snapshot(tree, times=False)


def test_it_goes_on_with_the_journal_and_compares_the_rest(site: Site, tmp_path: Path) -> None:
    chance = random.Random(6)
    content = bytearray(chance.randbytes(16 * PART))
    write(tmp_path / "large", bytes(content))
    # Every second part is another one.
    for part in range(0, 16, 2):
        content[part * PART] ^= 1
    write(site.data / "large", bytes(content))
    site.serve()
    words = ("--update", "content")
    process = site.begin(tmp_path / "large", f"127.0.0.1:{site.data}", *words, "--bandwidth-limit", "8M")
    wait_until(
        lambda: any(parts_written(found) >= 4 for found in site.data.glob(".waystage-copy-*/journal")),
        process,
    )
    process.kill()
    process.communicate()
    assert (site.data / "large").read_bytes() == content
    ran = site.copy(tmp_path / "large", f"127.0.0.1:{site.data}", *words).expect()
    counts = ran.json["counts"]
    assert counts["resumed"] == 1 and counts["resumed_bytes"] >= 4 * PART
    # What is in the journal is neither sent nor compared again, and what is alike is not sent.
    assert counts["bytes"] < 8 * PART
    assert (site.data / "large").read_bytes() == (tmp_path / "large").read_bytes()
    assert leftovers(site.data) == []


def test_a_dry_run_of_a_comparison_is_refused_in_a_sentence(site: Site, tmp_path: Path) -> None:
    refused = site.copy(tmp_path, "127.0.0.1:copy", "--update", "content", "--dry-run", port=1)
    assert refused.code == 2 and "omit one of them" in refused.json["error"]
