"""Copies between a real server and real clients: all that a copy on one machine keeps, and the same command after a crash."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from copying_trees import leftovers, make_everything, snapshot
from harness import wait_until
from remote_copy_support import Middlebox, Site, ended_json, parts_written

PART = 4 << 20


def test_a_tree_with_everything_goes_there_and_comes_back(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    make_everything(tree)
    site.serve()
    there = site.copy(tree, f"ada@127.0.0.1:{site.data}/copy").expect()
    assert snapshot(site.data / "copy") == snapshot(tree)
    value = there.json
    assert (value["connection"]["way"], value["problems"]) == ("UDP", [])
    assert value["limited_by"] is not None and int(value["digest"], 16) != 0
    assert leftovers(site.data) == []
    again = site.copy(tree, f"127.0.0.1:{site.data}/copy").expect()
    assert (again.json["counts"]["files"], again.json["counts"]["bytes"]) == (0, 0)
    assert again.json["counts"]["same"] == value["counts"]["files"] + value["counts"]["hard_links"]
    back = site.copy("ada@127.0.0.1:copy", tmp_path / "back", "--verify", "--privileged").expect()
    assert snapshot(tmp_path / "back") == snapshot(tree)
    assert back.json["counts"]["verified"] == value["counts"]["files"]
    assert site.end() == 0
    assert "ada@127.0.0.1" in site.log() and site.client_key not in site.log()


def test_statistics_tell_each_second(site: Site, tmp_path: Path) -> None:
    # For some seconds longer than it takes to write three lines: a busy machine leaves some out.
    (tmp_path / "large").write_bytes(bytes(6 << 20))
    site.serve()
    words = ("--bandwidth-limit", "1M", "--statistics", tmp_path / "lines")
    there = site.copy(tmp_path / "large", f"127.0.0.1:{site.data}/new", *words).expect()
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text(encoding="utf-8").splitlines()]
    assert len(lines) >= 3
    moved = [line for line in lines if line["counts"]["bytes"]]
    assert len(moved) >= 3 and all(line["connection"]["sent_packets"] > 0 for line in moved)
    assert lines[-1]["counts"] == there.json["counts"]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_one_file_many_small_ones_and_large_ones_arrive(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    chance = random.Random(1)
    for number in range(400):
        path = tree / f"{number % 7}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(chance.randrange(3000)))
    (tree / "large").write_bytes(chance.randbytes(3 * PART + 17))
    (tree / "exact").write_bytes(chance.randbytes(2 * PART))
    with open(tree / "sparse", "wb") as file:
        file.truncate(6 * PART)
        file.seek(4 * PART + 5)
        file.write(b"in the middle")
    site.serve("workers = 3")
    site.copy(tree, f"127.0.0.1:{site.data}/new", "--workers", 3).expect()
    assert snapshot(site.data / "new") == snapshot(tree)
    assert (site.data / "new/sparse").stat().st_blocks * 512 < PART
    site.copy(tree / "large", f"127.0.0.1:{site.data}/renamed").expect()
    assert (site.data / "renamed").read_bytes() == (tree / "large").read_bytes()
    site.copy("127.0.0.1:new/large", tmp_path).expect()
    assert (tmp_path / "large").read_bytes() == (tree / "large").read_bytes()
    site.copy("127.0.0.1:new", tmp_path / "chosen", "-i", "1*", "-x", "3").expect()
    names = {path.name for path in (tmp_path / "chosen").rglob("*") if path.is_file()}
    assert names == {str(n) for n in range(400) if str(n).startswith("1") and n % 7 != 3}


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_a_client_that_was_killed_goes_on_where_it_was(site: Site, tmp_path: Path, push: bool) -> None:
    source = (tmp_path if push else site.given) / "large"
    source.write_bytes(random.Random(2).randbytes(16 * PART))
    to = site.data if push else tmp_path / "here"
    to.mkdir(exist_ok=True)
    ends = (source, f"127.0.0.1:{to}") if push else (f"127.0.0.1:{source}", to)
    site.serve()
    process = site.begin(*ends, "--bandwidth-limit", "8M")
    wait_until(
        lambda: any(parts_written(found) >= 2 for found in to.glob(".waystage-copy-*/journal")), process
    )
    process.kill()
    process.communicate()
    assert not (to / "large").exists()
    ran = site.copy(*ends).expect()
    assert (to / "large").read_bytes() == source.read_bytes()
    counts = ran.json["counts"]
    assert counts["resumed"] == 1 and counts["resumed_bytes"] >= 2 * PART
    assert counts["bytes"] + counts["resumed_bytes"] == 16 * PART
    assert leftovers(to) == []


def test_a_server_that_was_killed_is_gone_on_with(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(random.Random(3).randbytes(16 * PART))
    (tree / "small").write_bytes(b"small")
    site.serve()
    process = site.begin(tree, f"127.0.0.1:{site.data}/copy", "--bandwidth-limit", "8M")
    journal = site.data / "copy/.waystage-copy/journal"
    wait_until(lambda: parts_written(journal) >= 2, process)
    assert site.end(signal.SIGKILL) == -signal.SIGKILL
    said = ended_json(process)
    assert process.returncode == 1 and "goes on where it stopped" in said["error"]
    site.serve()
    ran = site.copy(tree, f"127.0.0.1:{site.data}/copy").expect()
    assert snapshot(site.data / "copy") == snapshot(tree)
    assert ran.json["counts"]["resumed_bytes"] >= 2 * PART
    assert leftovers(site.data) == []


def test_a_copy_goes_on_by_itself_when_the_server_comes_back(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(random.Random(3).randbytes(16 * PART))
    site.serve()
    # What is left of an earlier copy is thrown away once, and not what this one has done.
    words = ("--bandwidth-limit", "12M", "--retry-for", "60", "--restart", "--connections", "2")
    process = site.begin(tree, f"127.0.0.1:{site.data}/copy", *words)
    journal = site.data / "copy/.waystage-copy/journal"
    wait_until(lambda: parts_written(journal) >= 3, process)
    assert site.end(signal.SIGKILL) == -signal.SIGKILL
    site.serve()
    value = ended_json(process)
    assert process.returncode == 0, value
    assert snapshot(site.data / "copy") == snapshot(tree)
    assert value["counts"]["resumed_bytes"] >= 3 * PART
    assert leftovers(site.data) == []


def test_a_server_that_does_not_come_back_is_tried_for_as_long_as_was_said(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(8 * PART))
    site.serve()
    process = site.begin(
        tmp_path / "large", f"127.0.0.1:{site.data}", "--bandwidth-limit", "8M", "--retry-for", "3"
    )
    wait_until(
        lambda: any(parts_written(found) for found in site.data.glob(".waystage-copy-*/journal")), process
    )
    assert site.end(signal.SIGKILL) == -signal.SIGKILL
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1 and b"retrying for" in err and b"cannot be reached" in err


def test_where_udp_is_blocked_that_is_said_and_tcp_carries_the_data(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    make_everything(tree)
    (tree / "large").write_bytes(random.Random(4).randbytes(PART + 1))
    site.serve()
    with Middlebox(site.port) as box:
        ran = site.copy(tree, f"127.0.0.1:{site.data}/copy", "--udp-wait", "0.5", port=box.port)
        back = site.copy(
            "127.0.0.1:copy", tmp_path / "back", "--privileged", "--udp-wait", "0", port=box.port
        )
    assert ran.code == 0, ran
    assert ran.json["connection"]["way"] == "TCP"
    assert "something on the way blocks it" in ran.err and ran.err.count("note:") == 1
    assert snapshot(site.data / "copy") == snapshot(tree)
    assert back.code == 0 and "note:" not in back.err
    assert snapshot(tmp_path / "back") == snapshot(tree)


def test_a_draining_server_accepts_no_session_and_finishes(site: Site, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(4 * PART))
    site.serve()
    process = site.begin(tmp_path / "large", f"127.0.0.1:{site.data}", "--bandwidth-limit", "2M")
    wait_until(lambda: any(site.data.glob(".waystage-copy-*/journal")), process)
    assert site.end() == 0
    assert ended_json(process)["complete"] and process.returncode == 0
    assert (site.data / "large").stat().st_size == 4 * PART
    late = site.copy(tmp_path / "large", f"127.0.0.1:{site.data}")
    assert late.code == 1 and "is `waystage serve` running there" in late.json["error"]


def test_interrupting_the_client_ends_it_and_leaves_what_it_did(site: Site, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(16 * PART))
    site.serve()
    process = site.begin(tmp_path / "large", f"127.0.0.1:{site.data}", "--bandwidth-limit", "8M")
    wait_until(
        lambda: any(parts_written(found) for found in site.data.glob(".waystage-copy-*/journal")), process
    )
    process.send_signal(signal.SIGINT)
    assert ended_json(process)["exit_code"] == 130
    ran = site.copy(tmp_path / "large", f"127.0.0.1:{site.data}")
    assert ran.code == 0 and ran.json["counts"]["resumed_bytes"] >= PART


@pytest.mark.parametrize(
    ("given", "asked", "agreed"),
    [("", "32Mi", 32), ('memory = "64Mi"', "1Gi", 64), ('memory = "1Gi"', "512Mi", 512)],
)
def test_the_lower_memory_of_both_ends_bounds_the_data_in_flight(
    site: Site, tmp_path: Path, given: str, asked: str, agreed: int
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(PART))
    site.serve(top=given)
    ran = site.copy(
        tmp_path / "file", f"127.0.0.1:{site.data}/file", "--memory", asked, "--udp-wait", "30"
    ).expect()
    assert ran.json["connection"]["memory_bytes"] == agreed << 20


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("15Mi", "the least is 16MiB"),
        ("5Gi", "the most is 4GiB"),
        ("much", "is no amount of bytes"),
        ("-1", "it is negative"),
        ("0", "the least is 16MiB"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(site: Site, tmp_path: Path, asked: str, words: str) -> None:
    ran = site.copy(tmp_path, f"127.0.0.1:{site.data}", "--memory", asked, port=1)
    assert ran.code == 2 and words in ran.out + ran.err, ran


def test_directories_that_several_workers_make_are_counted_once(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(400):
        (tree / f"{number}").mkdir(parents=True)
        (tree / f"{number}/file").write_bytes(b"contents")
    site.serve()
    for number in range(2):
        done = site.copy(tree, f"127.0.0.1:{site.data}/to{number}").expect()
        assert done.json["counts"]["directories"] == 400


@pytest.mark.parametrize("push", [True, False])
def test_what_messages_cannot_say_is_counted_as_lost(site: Site, tmp_path: Path, push: bool) -> None:
    tree = (tmp_path if push else site.data) / "odd"
    tree.mkdir()
    os.mkfifo(tree / "pipe")
    os.link(tree / "pipe", tree / "pipe-too")
    os.symlink("pipe", tree / "link")
    os.link(tree / "link", tree / "link-too", follow_symlinks=False)
    (tree / "far").write_text("x")
    os.utime(tree / "far", (9_300_000_000, 9_300_000_000))
    held = (tree / "far").stat().st_mtime == 9_300_000_000
    site.serve()
    words = (tree, f"127.0.0.1:{site.data}/new") if push else (f"127.0.0.1:{tree}", tmp_path / "new")
    ran = site.copy(*words).expect(8)
    lost = sorted((p["path"], p["text"]) for p in ran.json["problems"] if p["kind"] == "lost")
    # Of two names the one that is met first is kept.
    assert [path.removesuffix("-too") for path, text in lost if "hard link" in text] == ["link", "pipe"], lost
    assert [path for path, text in lost if "1677" in text] == (["far"] if held else [])
    assert ran.json["counts"]["lost"] == len(lost)
    assert site.end() == 0
