"""`waystage aggregator` as its launcher runs it: start, refusals, its end with its ranks or its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import ran
from waystage._native import Aggregator, AggregatorError
from waystage.native_options.aggregators import AggregatorOptions

TOKEN = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "private"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def program() -> list[str]:
    return [sys.executable, "-m", "waystage", "aggregator", "--listen", "127.0.0.1:0", "--name", "n0"]


def environment(token: str = TOKEN) -> dict[str, str]:
    return {**os.environ, "WAYSTAGE_IO_TOKEN": token, "WAYSTAGE_IO_APP": "app"}


@pytest.fixture
def process(folder: Path) -> Iterator[Aggregator]:
    options = AggregatorOptions(
        socket=str(folder / "socket"), listen="127.0.0.1:0", name="n0", token=TOKEN, app="app", memory=4 << 20
    )
    with Aggregator(options) as running:
        yield running


def test_it_ends_when_no_rank_comes_and_leaves_nothing_behind(folder: Path, program: list[str]) -> None:
    ready = folder / "ready"
    words = [*program, "--socket", folder / "socket", "--linger", "0.1", "--ready-file", ready]
    ended = ran(words, env=environment()).expect()
    assert "aggregators at n0@127.0.0.1:" in ended.err
    assert list(folder.iterdir()) == []


def test_it_ends_with_its_parent(folder: Path, program: list[str]) -> None:
    with subprocess.Popen(["sleep", "600"]) as parent:
        words = [*program, "--socket", folder / "socket", "--parent", parent.pid]
        with subprocess.Popen(
            [str(word) for word in words], env=environment(), stderr=subprocess.DEVNULL
        ) as of:
            parent.kill()
            assert of.wait(120) == 0


def test_without_a_token_or_a_private_directory_it_says_what_to_do(folder: Path, program: list[str]) -> None:
    words = [*program, "--socket", folder / "socket"]
    assert "WAYSTAGE_IO_TOKEN" in ran(words, env=environment("")).expect(2).err
    folder.chmod(0o755)
    refused = ran(words, env=environment())
    assert refused.code == 1
    assert "0700" in refused.err
    assert "Traceback" not in refused.err


def test_its_status_names_what_it_serves_and_settings_are_taken(process: Aggregator) -> None:
    assert process.address.startswith("n0@127.0.0.1:")
    process.set_scheduled("app", True)
    process.grant("app", 3, 1)
    process.set_server_map("app", ["n0"])
    while process.status()["apps"].get("app", {}).get("weight") != 3:
        assert not process.wait(0.05)
    status = process.status()
    assert status["ranks"] == status["files"] == status["operations"] == 0
    assert status["pool_bytes"] == 4 << 20
    assert process.notices() == []


def test_options_that_make_no_sense_are_refused(folder: Path) -> None:
    good = {
        "socket": str(folder / "socket"),
        "listen": "127.0.0.1:0",
        "name": "n0",
        "token": TOKEN,
        "app": "app",
    }
    with pytest.raises(ValueError, match="memory"):
        Aggregator(AggregatorOptions(**good, memory=5))  # type: ignore[arg-type]
    with pytest.raises(AggregatorError, match="ADDRESS:PORT"):
        Aggregator(AggregatorOptions(**{**good, "listen": "nowhere"}))  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_a_node_without_a_default_route_listens_where_others_reach_it() -> None:
    name = f"ws-address-{os.getpid()}"
    within = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for words in (
            "link set lo up",
            "link add v0 type veth peer name v1",
            "addr add 10.9.8.7/24 dev v0",
            "link set v0 up",
        ):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
        code = "from waystage.cli.aggregator import _own_address; print(_own_address())"
        done = subprocess.run(
            [*within, sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "10.9.8.7"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
