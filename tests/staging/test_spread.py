"""Node-local destinations: each node gets the whole tree, and storage is read once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from harness import command, wait_until
from staging_support import ROOT, Stage, same
from waystage.staging.spread import Item, divided, items_of, rounds, tree_rounds


@given(some.integers(1, 70))
def test_every_node_gets_every_share_once_and_only_from_nodes_that_have_it(nodes: int) -> None:
    power = 1 << (nodes.bit_length() - 1)
    held: list[list[int]] = [[] for _ in range(nodes)]
    for steps in rounds(nodes):
        before = [set(each) for each in held]
        for step in steps:
            assert step.by is None or set(step.shares) <= before[step.by]
            held[step.to] += step.shares
    assert all(sorted(each) == list(range(power)) for each in held)
    read = [share for steps in rounds(nodes) for step in steps if step.by is None for share in step.shares]
    assert sorted(read) == list(range(power)), "storage is read once"
    assert len(rounds(nodes)) <= nodes.bit_length() + 1


@given(some.lists(some.integers(0, 1000), max_size=50), some.integers(1, 8))
def test_shares_have_everything_once_and_differ_by_one_item_at_most(sizes: list[int], count: int) -> None:
    items = [Item((b"%d" % number,), size) for number, size in enumerate(sizes)]
    shares = divided(items, count)
    assert sorted(item.names for share in shares for item in share) == sorted(item.names for item in items)
    loads = [sum(item.bytes for item in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_names_of_one_file_stay_together_and_empty_directories_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"123")
    os.link(tmp_path / "a" / "one", tmp_path / "two")
    (tmp_path / "empty").mkdir()
    assert {frozenset(item.names) for item in items_of(str(tmp_path))} == {
        frozenset({b"a/one", b"two"}),
        frozenset({b"empty"}),
    }


@pytest.mark.skipif(not ROOT, reason="needs root, for a mount namespace for each node")
def test_a_tree_is_spread_over_nodes_with_one_read_of_storage(stage: Stage) -> None:
    nodes = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    rsh, local = local_storage(stage, nodes)
    source = stage.tree("source", files=30, size=30_000)
    (source / "deep" / "empty").mkdir(parents=True)
    stage.start("--rsh", rsh, "--remote-waystage", " ".join(command()))
    done = stage.stage(
        *("in", source, local / "job" / "set", "--job", "7", "--user", "root"),
        *("--nodes", ",".join(nodes), "--node-local", "--verify", "--json"),
    ).expect()
    [found] = stage.wait(done.json["id"])
    assert found["state"] == "done", found
    for node in nodes:
        assert same(source, stage.folder / node / "job" / "set")
        assert (stage.folder / node / "job" / "set" / "deep" / "empty").is_dir()
    assert found["bytes_done"] == 3 * 30 * 30_000
    choices = {each["what"]: each for each in stage.status(found["id"], explain=True)[0]["choices"]}
    assert choices["storage"]["chosen"] == f"{30 * 30_000:,} bytes read"
    again = stage.stage(
        *("in", source, local / "job" / "set", "--job", "7", "--user", "root"),
        *("--nodes", ",".join(nodes), "--node-local", "--json"),
    ).expect()
    stage.wait(again.json["id"])
    choices = {each["what"]: each for each in stage.status(again.json["id"], explain=True)[0]["choices"]}
    assert choices["storage"]["chosen"] == "0 bytes read", "what is complete is not copied again"


@given(some.integers(1, 300))
def test_one_file_is_read_once_and_doubles_in_each_round(nodes: int) -> None:
    have: set[int] = set()
    for steps in tree_rounds(nodes):
        before = set(have)
        assert all(step.by is None or step.by in before for step in steps)
        assert len({step.by for step in steps}) == len(steps), "a node sends one copy at a time"
        have |= {step.to for step in steps}
    assert have == set(range(nodes)) and len(tree_rounds(nodes)) <= (nodes - 1).bit_length() + 1
    assert sum(step.by is None for steps in tree_rounds(nodes) for step in steps) == 1


def local_storage(stage: Stage, nodes: list[str]) -> tuple[Path, Path]:
    """A command that runs programs on nodes, each of which has another directory at the same path; that path."""
    rsh, local = stage.folder / "rsh", stage.folder / "local"
    local.mkdir()
    for node in nodes:
        (stage.folder / node).mkdir()
    rsh.write_text(
        "#!/bin/sh\n"
        f'exec unshare --mount sh -c \'mount --bind {stage.folder}/$0 {local} && exec sh -c "$1"\' "$1" "$2"\n'
    )
    rsh.chmod(0o755)
    return rsh, local


@pytest.mark.skipif(not ROOT, reason="needs root, for a mount namespace for each node")
def test_one_file_reaches_every_node_and_results_come_back_from_each(stage: Stage) -> None:
    nodes = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    rsh, local = local_storage(stage, nodes)
    (stage.folder / nodes[0] / "there").mkdir()
    source = stage.data / "input"
    source.write_bytes(os.urandom(300_000))
    stage.start("--rsh", rsh, "--remote-waystage", " ".join(command()))
    on = ("--job", "7", "--user", "root", "--nodes", ",".join(nodes), "--node-local", "--json")
    for destination, found in ((local / "new" / "name", "new/name"), (local / "there", "there/input")):
        done = stage.stage("in", source, destination, "--verify", *on).expect()
        [request] = stage.wait(done.json["id"])
        assert request["state"] == "done", request
        for node in nodes:
            assert (stage.folder / node / found).read_bytes() == source.read_bytes()
        choices = {each["what"]: each for each in stage.status(request["id"], explain=True)[0]["choices"]}
        assert choices["storage"]["chosen"] == "300,000 bytes read"
    for node in nodes:
        (stage.folder / node / "out").mkdir()
        (stage.folder / node / "out" / "result").write_text(node)
    done = stage.stage("out", local / "out", stage.data / "results", *on).expect()
    [request] = stage.wait(done.json["id"])
    assert request["state"] == "done", request
    for node in nodes:
        assert (stage.data / "results" / node / "result").read_text() == node
    refused = stage.stage("out", local / "out", stage.data / "results", *on, "--dry-run")
    assert refused.code != 0 and "does not look at the local storage" in refused.out


def test_a_node_that_cannot_be_reached_is_named(stage: Stage) -> None:
    rsh = stage.folder / "rsh"
    rsh.write_text('#!/bin/sh\necho "connect to host $1: no route" >&2\nexit 255\n')
    rsh.chmod(rsh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    stage.start("--rsh", rsh)
    number = stage.submit("in", stage.tree("source"), "/local/x", "--nodes", "n1,n2", "--node-local")

    def named() -> bool:
        reason = stage.status(number)[0]["reason"]
        return "node n" in reason and "no route" in reason

    wait_until(named, stage.process, "the reason with the node and what ssh said")
    stage.stage("cancel", number).expect()
