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


def test_an_aggregator_listens_in_the_network_that_is_given(folder: Path) -> None:
    program = [
        sys.executable,
        "-m",
        "waystage",
        "aggregator",
        "--socket",
        folder / "socket",
        "--linger",
        "0.1",
    ]
    ended = ran([*program, "--network", "127.0.0.0/8", "--name", "n0"], env=environment()).expect()
    assert "aggregators at n0@127.0.0.1:" in ended.err
    for words, why in (
        (["--network", "nowhere0"], "no IPv4 address at an interface nowhere0"),
        (["--network", "lo", "--listen", "127.0.0.1:0"], "exclude each other"),
    ):
        assert why in ran([*program, *words], env=environment()).expect(2).err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_a_node_listens_where_others_reach_it() -> None:
    """Without a default route, and in a network that is named by its interface or a prefix."""
    name = f"ws-address-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for words in (
            "link set lo up",
            "link add v0 type veth peer name v1",
            "addr add 10.9.8.7/24 dev v0",
            "addr add 10.9.8.9/24 dev v0",
            "addr add 10.7.0.1/16 dev v1",
            "link add v2 type veth peer name v3",
            "addr add 10.6.0.1/16 dev v2",
            "link set v0 up",
            "link set v1 up",
        ):
            subprocess.run(["ip", "-n", name, *words.split()], check=True)
        code = (
            "import sys\n"
            "from waystage.collective import NetworkError, own_address\n"
            "for network in (None, *sys.argv[1:]):\n"
            "    try: print(own_address(network))\n"
            "    except NetworkError as error: print(error)\n"
        )
        networks = ["v1", "10.7.9.9/16", "10.9.8.9/32", "lo", "v2"]
        within = ["ip", "netns", "exec", name, sys.executable, "-c", code, *networks]
        *found, down = subprocess.run(within, capture_output=True, text=True, check=True).stdout.splitlines()
        assert found[0] in ("10.9.8.7", "10.7.0.1")
        assert found[1:] == ["10.7.0.1", "10.7.0.1", "10.9.8.9", "127.0.0.1"]
        assert "no IPv4 address at an interface v2 that is up; it has" in down and "10.9.8.7 (v0)" in down
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
