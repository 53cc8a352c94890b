"""`waystage lab` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, Waystage, measuring

pytestmark = pytest.mark.lab

Traces = Callable[[str], list[str]]


@pytest.fixture
def up(waystage: Waystage, lab_name: str) -> Iterator[str]:
    """A lab without a controller."""
    ran = waystage("lab", "up", "--no-controller", "--name", lab_name)
    assert ran.code == 0, ran.err
    yield lab_name
    waystage("lab", "down", "--name", lab_name)


def test_a_lab_is_brought_up_looked_into_used_and_taken_down(
    waystage: Waystage, up: str, traces: Traces
) -> None:
    status = waystage("lab", "status", "--name", up, "--json")
    assert status.code == 0
    assert [h["host"] for h in status.json["hosts"]] == ["c1", "c2", "c3", "c4", "c5", "c6", "storage"]
    assert {s["controller"] for s in status.json["switches"]} == {"away"}
    shown = waystage("lab", "status", "--name", up).out
    assert "storage  storage  10.57.0.7" in shown
    assert waystage("lab", "exec", "--name", up, "c2", "--", "hostname").out == "c2\n"
    assert waystage("lab", "exec", "--name", up, "c2", "sh", "-c", "exit 9").code == 9
    assert waystage("lab", "exec", "c3", "hostname", WAYSTAGE_LAB=up).out == "c3\n"
    bridges = waystage("lab", "exec", "--name", up, "fabric", "--", "ovs-vsctl", "list-br").out
    assert bridges.split() == ["core1", "core2", "edge1", "edge2"]
    down = waystage("lab", "down", "--name", up, "--json")
    assert (down.code, down.json) == (0, {"lab": up, "removed": True})
    assert traces(up) == []
    assert waystage("lab", "down", "--name", up, "--json").json == {"lab": up, "removed": False}


def test_the_paper_s_lab_is_up_within_ten_seconds(waystage: Waystage, up: str) -> None:
    waystage("lab", "down", "--name", up)
    with measuring():
        ran = waystage("lab", "up", "paper", "--no-controller", "--name", up, "--json", "--quiet")
        assert ran.err == ""
        assert ran.json["seconds"] < 10


def test_links_are_shown_with_rate_and_drops(waystage: Waystage, up: str) -> None:
    found = waystage("lab", "links", "--name", up, "--interval", "0.2", "--json").json
    assert len(found["links"]) == 11
    first = found["links"][0]
    assert (first["link"], first["capacity_bps"], first["up"]) == ("c1:1-edge1:1", 100_000_000, True)
    assert {d["node"] for d in first["directions"]} == {"c1", "edge1"}
    assert {"rate_bps", "by_class_bps", "queue_drops", "cpu_drops"} <= set(first["directions"][0])
    table = waystage("lab", "links", "--name", up, "--interval", "0.2", "--all").out.splitlines()
    assert table[0].split() == [
        "from",
        "to",
        "Mbit/s",
        "of",
        "mpi",
        "staging",
        "io",
        "wan",
        "queue",
        "cpu",
        "state",
    ]
    assert len(table) == 1 + 2 * 11


def test_watched_links_are_a_line_of_json_each_until_interrupted(up: str) -> None:
    command = [
        sys.executable,
        "-m",
        "waystage",
        "lab",
        "links",
        "--name",
        up,
        "--watch",
        "--interval",
        "0.1",
        "--json",
    ]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        for _ in range(3):
            assert len(json.loads(watch.stdout.readline())["links"]) == 11
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=WAIT_S)
    finally:
        watch.kill()
        watch.wait()
    assert watch.returncode == 130


def test_two_starts_at_once_one_is_up_and_the_other_is_refused(
    waystage: Waystage, lab_name: str, traces: Traces
) -> None:
    command = [sys.executable, "-m", "waystage", "lab", "up", "--no-controller", "--name", lab_name]
    both = [
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=WAIT_S)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 6], said
    refused = said[[process.returncode for process in both].index(6)]
    assert f"lab '{lab_name}'" in refused.splitlines()[-1]
    assert waystage("lab", "status", "--name", lab_name).code == 0
    assert waystage("lab", "exec", "--name", lab_name, "c6", "--", "true").code == 0
    assert waystage("lab", "down", "--name", lab_name).code == 0
    assert traces(lab_name) == []


def test_failures_have_their_own_status_and_one_sentence(waystage: Waystage, up: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.graphml"
    bad.write_text("<graphml><graph><node id='a'/></graph></graphml>")
    for arguments, code, words in (
        (("up", "--name", up), 6, "is up already: take it down with 'waystage lab down"),
        (("up", str(bad)), 3, "bad.graphml:1: node a has no typ"),
        (("up", "nowhere.graphml"), 3, "nowhere.graphml: No such file"),
        (("up", "--name", "a/b"), 1, "use 1 to 16 letters"),
        (("status", "--name", f"{up}z"), 1, "is not up: bring it up with"),
        (("links", "--name", f"{up}z"), 1, "is not up"),
        (("exec", "--name", up, "c9", "--", "true"), 1, "has no host 'c9': there are c1"),
    ):
        ran = waystage("lab", *arguments)
        assert ran.code == code, ran.err
        (sentence,) = [line for line in ran.err.splitlines() if not line.startswith("[")]
        assert sentence.startswith("waystage: error: ")
        assert words in sentence


def test_a_switch_program_that_died_is_shown_by_status(waystage: Waystage, up: str) -> None:
    os.kill(int(Path(f"/run/ws-lab/{up}/ovs/ovs-vswitchd.pid").read_text()), signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while (ran := waystage("lab", "status", "--name", up)).code == 0:
        assert time.monotonic() < deadline
    assert ran.code == 1
    assert "ovs-vswitchd of the lab has stopped: see " in ran.err


AS_ANOTHER_USER = """
import os, sys
import waystage.cli.lab, waystage.cli.main
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(waystage.cli.main.run(sys.argv[1:]))
"""


def test_without_root_every_command_says_so_before_it_does_anything(lab_name: str, traces: Traces) -> None:
    for name, *arguments in (["up"], ["down"], ["status"], ["links"], ["exec", "c1", "true"]):
        ran = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, "lab", name, "--name", lab_name, *arguments],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 5, ran.stderr
        assert "needs root for network namespaces: run it with sudo" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
    assert traces(lab_name) == []


def test_with_its_controller_hosts_talk_and_links_are_counted_by_class(
    waystage: Waystage, lab_name: str, traces: Traces
) -> None:
    try:
        ran = waystage("lab", "up", "--name", lab_name)
        assert ran.code == 0, ran.err
        status = waystage("lab", "status", "--name", lab_name, "--json").json
        assert {s["controller"] for s in status["switches"]} == {"connected"}
        assert all(s["rules"] > 0 for s in status["switches"])
        inside = [sys.executable, "-m", "waystage", "lab", "exec", "--name", lab_name, "c1", "--"]
        ping = subprocess.run(
            [*inside, "ping", "-c", "3", "-w", "60", "10.57.0.4"], capture_output=True, text=True
        )
        assert ping.returncode == 0, ping.stdout + ping.stderr
        load = subprocess.Popen(
            [*inside, "ping", "-q", "-i", "0.01", "-s", "8000", "10.57.0.4"], stdout=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while True:
                found = waystage("lab", "links", "--name", lab_name, "--json").json
                ends = {(d["node"], d["port"]): d for link in found["links"] for d in link["directions"]}
                # 100 packets a second of 8,042 bytes, each way.
                if ends["edge2", 1]["by_class_bps"].get("mpi", 0) > 3e6:
                    break
                assert time.monotonic() < deadline, ends["edge2", 1]
            assert ends["edge2", 1]["rate_bps"] > 3e6
        finally:
            load.kill()
            load.wait()
    finally:
        waystage("lab", "down", "--name", lab_name)
    assert traces(lab_name) == []


def test_a_controller_that_does_not_start_takes_the_lab_down_again(
    waystage: Waystage, lab_name: str, traces: Traces
) -> None:
    ran = waystage("lab", "up", "--name", lab_name, "--policy", "no-such-policy")
    assert ran.code == 1
    assert "the controller ended at once: " in ran.err
    assert "no-such-policy" in ran.err
    assert traces(lab_name) == []
