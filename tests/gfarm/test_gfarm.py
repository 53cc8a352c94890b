"""A real Gfarm: copies to and from it, its replicas as layouts, replicas placed, and what is said when it refuses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies

from gfarm_support import NODES, OTHER, started
from harness import Ran
from waystage._native import read_layout
from waystage.gfarm import GfarmError, connected_nodes, path_in_gfarm, run_tool, why_no_node
from waystage.restripe.replicas import parse_where, place_replicas, where_replicas_are
from waystage.worlds.lab import gfarm
from waystage.worlds.lab.gfarm import Gfarm

pytestmark = pytest.mark.lab

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def made() -> Iterator[Gfarm]:
    with started() as running:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GFARM_CONFIG_FILE", str(running.config))
            yield running


@pytest.fixture(scope="module")
def point(made: Gfarm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("point")
    gfarm.mount(made, place)
    return place


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "sub dir").mkdir(parents=True)
    for number in range(5):
        (top / "sub dir" / f"file {number}").write_bytes(os.urandom(100_000 * number + 1))
    (top / "empty").touch()
    (top / "large").write_bytes(os.urandom(5_000_000))
    os.utime(top / "large", ns=(10**18, 10**18))
    return top


def test_a_tree_is_copied_to_gfarm_and_back_and_verified(
    point: Path, tree: Path, tmp_path: Path, waystage: Run
) -> None:
    there = point / tmp_path.name
    waystage("copy", tree, there, "--verify").expect()
    time.sleep(2)  # the kernel believes for a second what it saw of the files while they were open
    again = waystage("copy", tree, there, "--json").expect().json
    assert again["counts"]["files"] == 0 and again["counts"]["same"] == 7
    # The time of the top itself is that of the journal's removal: gfarm2fs removes open files late.
    assert waystage("verify", tree, there).out.splitlines()[:-1] in ([], ["~ . (mtime)"])
    assert not [name for name in os.listdir(there) if name.startswith(".waystage")]
    waystage("copy", there, tmp_path / "back").expect()
    # While a file is open, gfarm2fs gives the time at which its node wrote it: only contents are as they were.
    differing = waystage("verify", tree, tmp_path / "back").out.splitlines()[:-1]
    assert all(line.endswith(" (mtime)") for line in differing)


def test_a_file_is_where_its_replicas_are(point: Path, waystage: Run) -> None:
    file = point / "layouts" / "replicated"
    file.parent.mkdir()
    file.write_bytes(b"r" * 10_000)
    first = read_layout(file)
    assert first is not None and first["kind"] == "gfarm" and len(first["targets"]) == 1
    waystage("restripe", file.parent, "--replicas", "2").expect()
    layout = read_layout(file)
    assert layout is not None
    assert {target.removeprefix("host:") for target in layout["targets"]} <= set(NODES)
    assert len(layout["targets"]) == 2 and layout["mirrors"] == [0, 1]
    assert sorted(where_replicas_are("/layouts")["/layouts/replicated"]) == sorted(
        target.removeprefix("host:") for target in layout["targets"]
    )


def test_a_catalog_of_gfarm_binds_loaders_to_its_hosts(point: Path, tmp_path: Path, waystage: Run) -> None:
    top = point / "dataset"
    top.mkdir()
    for number in range(6):
        (top / f"f{number}").write_bytes(os.urandom(30_000))
    for number in range(6):
        place_replicas(top / f"f{number}", 1, [NODES[number % 3]])
    waystage("catalog", "build", top, tmp_path / "catalog").expect()
    loaded = waystage("load", tmp_path / "catalog", "--json").expect().json
    assert loaded["bytes"] == 180_000
    names = {target["target"] for target in loaded["targets"]}
    assert names == {f"host:{node}" for node in NODES}


def test_replicas_are_placed_on_the_nodes_that_are_named_and_on_no_other(point: Path, waystage: Run) -> None:
    top = point / "placed"
    top.mkdir()
    for name in ("one", "with blank"):
        (top / name).write_bytes(b"contents")
    dry = waystage("restripe", top, "--replicas", "2", "--dry-run", "--json").expect().json
    assert dry["to_place"] == 2 and dry["enough"] == 0
    hosts = f"{NODES[1]},{NODES[2]}"
    done = waystage("restripe", "gfarm:/placed", "--replicas", "2", "--hosts", hosts, "--json").expect().json
    assert done["by_host"] == {NODES[1]: 2, NODES[2]: 2} and done["enough"] == done["files"] == 2
    done = waystage("restripe", top, "--replicas", "1", "--hosts", NODES[0], "--json").expect().json
    assert done["by_host"] == {NODES[0]: 2}
    assert (top / "with blank").read_bytes() == b"contents"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas", "4"], "4 replicas need 4 nodes, and there are 3 connected"),
        (["--replicas", "1", "--hosts", "127.0.0.77"], "127.0.0.77 is not registered"),
        (["--layout", "stripes=2"], "on Gfarm give --replicas"),
    ],
)
def test_what_gfarm_cannot_do_is_said_in_one_sentence(
    point: Path, waystage: Run, options: list[str], words: str
) -> None:
    (point / "any").write_bytes(b"any")
    refused = waystage("restripe", point, *options)
    assert refused.code != 0 and words in refused.err and len(refused.err.strip().splitlines()) == 1


def test_a_path_elsewhere_is_not_taken_for_one_of_gfarm(tmp_path: Path, waystage: Run) -> None:
    refused = waystage("restripe", tmp_path, "--replicas", "1").expect(1)
    assert "is not on Gfarm: give a path below a gfarm2fs mount, or gfarm:/PATH" in refused.err
    with pytest.raises(GfarmError, match="does not exist"):
        path_in_gfarm(tmp_path / "absent")


def test_an_unregistered_node_and_one_with_another_key_get_different_sentences(tmp_path: Path) -> None:
    """Gfarm's own commands say "no filesystem node" in both cases."""
    with started(OTHER, register=False, port=10621) as unregistered:
        env = unregistered.environment
        assert "no filesystem node is registered" in why_no_node(env)
        assert "127.0.1.1 is not registered" in why_no_node(env, ["127.0.1.1"])
        run_tool("gfhost", "-c", "-a", "x86_64-linux", "-p", "10600", "-n", "1", "127.0.1.1", env=env)
        assert connected_nodes(env) == []
        assert "127.0.1.1 is registered but not connected" in why_no_node(env)
        assert "its key differs" in why_no_node(env)
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(GfarmError, match="is registered but not connected"):
            run_tool("gfreg", str(tmp_path / "file"), "/file", env=env, timeout_s=60)


def test_a_client_with_another_key_learns_which_key_to_copy(tmp_path: Path) -> None:
    with started(OTHER, port=10622) as running:
        key = tmp_path / "otherkey"
        config = tmp_path / "gfarm2.conf"
        config.write_text(running.config.read_text().replace(f"{running.folder}/key", str(key)))
        env = {"GFARM_CONFIG_FILE": str(config)}
        run_tool("gfkey", "-f", "-p", "3600", env=env)
        with pytest.raises(
            GfarmError, match=r"this user's key is not the one .* shared_key_file in .*gfarm2.conf"
        ):
            run_tool("gfls", "/", env=env)


def test_nothing_is_left_of_a_gfarm(tmp_path: Path) -> None:
    place = tmp_path / "point"
    place.mkdir()
    with started(OTHER, port=10623) as running:
        folder = Path(running.folder)
        gfarm.mount(running, place)
        pids = [process.pid for process in running.processes]
        assert len(pids) == 2 and os.path.ismount(place)
    assert not folder.exists() and not os.path.ismount(place)
    assert not any(process.alive for process in running.processes)


@given(strategies.text())
def test_any_output_of_gfwhere_is_read(text: str) -> None:
    found = parse_where(text, "/path")
    assert all(hosts for hosts in found.values())


def test_the_output_of_gfwhere_is_read_also_for_odd_names() -> None:
    text = "/d/a:\nn1 n2\n\n/d/b c:\nn3\n\n/d/empty:\n\n/d/x:y:\nn1\n\n"
    assert parse_where(text, "/d") == {"/d/a": ["n1", "n2"], "/d/b c": ["n3"], "/d/x:y": ["n1"]}
    assert parse_where("n1 n2\n\n", "/single") == {"/single": ["n1", "n2"]}
