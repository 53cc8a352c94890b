"""Several connections for one copy: the same copy, one journal, caps of the server, fallback to TCP."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from copying_trees import leftovers, make_everything, snapshot
from harness import wait_until
from remote_copy_support import Middlebox, Site, ended_json, parts_written

PART = 4 << 20


def make_tree(tree: Path) -> None:
    make_everything(tree)
    (tree / "large").write_bytes(random.Random(4).randbytes(7 * PART + 17))
    make_small(tree)


def make_small(tree: Path) -> None:
    chance = random.Random(1)
    for number in range(600):
        path = tree / "many" / f"{number % 7}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(9000)))


@pytest.mark.parametrize("udp", [True, False], ids=["udp", "tcp"])
def test_three_connections_carry_one_tree_there_and_back(site: Site, tmp_path: Path, udp: bool) -> None:
    tree = tmp_path / "tree"
    make_tree(tree)
    site.serve("sockets = 3")
    box = None if udp else Middlebox(site.port)
    more = ("--connections", 3) if udp else ("--connections", 3, "--udp-wait", "0.5")
    port = site.port if box is None else box.port
    try:
        # Slow enough that all of them come to carry something, and that what the machine is late with is no limit.
        slow = ("--bandwidth-limit", "6M")
        there = site.copy(tree, f"127.0.0.1:{site.data}/copy", *more, *slow, port=port)
        back = site.copy("127.0.0.1:copy", tmp_path / "back", "--privileged", *more, port=port)
    finally:
        if box is not None:
            box.close()
    for ran in (there, back):
        assert ran.code == 0, ran
        assert ran.json["connection"]["way"] == ("UDP" if udp else "TCP")
        assert ran is back or ran.json["limited_by"] == "cap"
        # What is blocked is said once.
        assert ran.err.count("note:") == (0 if udp else 1), ran.err
    assert snapshot(tmp_path / "back") == snapshot(site.data / "copy") == snapshot(tree)
    assert leftovers(site.data) == []
    assert site.end() == 0
    assert site.log().count("one more connection of a copy") >= 2


def test_a_server_caps_the_connections_of_a_copy_and_counts_them_as_one(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(random.Random(2).randbytes(PART))
    site.serve("copy_connections = 2\nconnections = 1")
    ran = site.copy(tmp_path / "file", f"127.0.0.1:{site.data}", "--connections", 5).expect()
    (note,) = ran.json["notes"]
    assert "allows 2 connections for one copy, not 5" in note
    assert (site.data / "file").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.parametrize("killed", ["client", "server"])
def test_what_three_connections_had_brought_is_not_sent_again_after_a_crash(
    site: Site, tmp_path: Path, killed: str
) -> None:
    tree = tmp_path / "tree"
    make_small(tree)
    # The only one that is sent in parts: those that the journal knows are its.
    (tree / "large").write_bytes(random.Random(3).randbytes(14 * PART))
    site.serve()
    words = (tree, f"127.0.0.1:{site.data}/copy", "--connections", 3)
    process = site.begin(*words, "--bandwidth-limit", "16M")
    journal = site.data / "copy/.waystage-copy/journal"
    wait_until(lambda: parts_written(journal) >= 3, process)
    if killed == "client":
        process.kill()
        process.communicate()
    else:
        assert site.end(signal.SIGKILL) == -signal.SIGKILL
        assert "goes on where it stopped" in ended_json(process)["error"]
        site.serve()
    ran = site.copy(*words).expect()
    assert snapshot(site.data / "copy") == snapshot(tree)
    assert ran.json["counts"]["resumed_bytes"] >= 2 * PART
    assert leftovers(site.data) == []


def test_what_comes_on_a_new_connection_before_its_welcome_is_not_lost(site: Site, tmp_path: Path) -> None:
    tree = site.given / "tree"
    make_small(tree)
    (tree / "large").write_bytes(random.Random(4).randbytes(3 * PART))
    site.serve()
    # Over TCP the server may send on a connection at once.
    for number in range(3):
        to = tmp_path / f"to{number}"
        site.copy(f"127.0.0.1:{tree}", to, "--connections", 2, "--udp-wait", 0).expect()
        assert snapshot(to) == snapshot(tree)
