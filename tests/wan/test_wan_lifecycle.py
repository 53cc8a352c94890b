"""`waystage lab wan` as a user types it; and nothing left behind, however a path ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness import WAIT_S, Waystage, ran, wait_until
from waystage.worlds.lab.wan import Profile, paths
from waystage.worlds.lab.wan.control import PathConfig
from waystage.worlds.lab.wan.resources import PathResources

pytestmark = pytest.mark.lab


def test_up_status_set_exec_down(waystage: Waystage, new_name: str) -> None:
    made = waystage(
        "lab", "wan", "up", new_name, "--profile", "satellite", "--rtt", "20ms", "--back", "loss=3%", "--json"
    ).expect()
    forward, back = made.json["directions"]["forward"], made.json["directions"]["back"]
    assert (forward["delay_ns"], forward["rate_bps"], forward["loss"]) == (10_000_000, 20e6, 0.01)
    assert (back["delay_ns"], back["rate_bps"], back["loss"]) == (10_000_000, 100e6, 0.03)
    assert forward["buffer_bytes"] == 50_000, "a BDP of what was said last"
    again = waystage("lab", "wan", "up", new_name)
    assert (again.code, "up already" in again.err) == (6, True)
    changed = waystage("lab", "wan", "set", new_name, "--direction", "back", "--loss", "0", "--json")
    assert [d["loss"] for d in changed.json["directions"].values()] == [0.01, 0.0]
    listed = waystage("lab", "wan", "status", "--json").json["paths"]
    assert [p["state"] for p in listed if p["path"] == new_name] == ["up"]
    ran = waystage("lab", "wan", "exec", new_name, "right", "--", "sh", "-c", "ip -br addr; exit 9")
    assert ran.code == 9 and "10.58.0.2 peer 10.58.0.1" in ran.out
    sleeper = paths.start(new_name, "left", ["sleep", "1000"])
    shown = waystage("lab", "wan", "status", new_name)
    assert shown.code == 0 and "lost at random" in shown.out
    assert waystage("lab", "wan", "down", new_name, "--json").json == {"path": new_name, "removed": True}
    assert sleeper.wait(WAIT_S) != 0
    assert not PathResources(new_name).anything_left and not PathResources(new_name).lock.exists()
    assert waystage("lab", "wan", "down", new_name, "--json").json["removed"] is False
    gone = waystage("lab", "wan", "status", new_name)
    assert (gone.code, "waystage lab wan up" in gone.err) == (1, True)


def test_a_path_whose_process_was_killed_is_found_and_repaired(waystage: Waystage, new_name: str) -> None:
    resources = paths.up(new_name, Profile())
    process = resources.process
    assert process is not None
    os.kill(process.process.pid, signal.SIGKILL)
    wait_until(lambda: not process.alive)
    found = waystage("lab", "wan", "status", new_name)
    assert (found.code, "has died" in found.err) == (1, True)
    paths.up(new_name, Profile())
    assert paths.status(new_name)["valid"] is True
    assert paths.down(new_name)
    assert not resources.anything_left


def test_what_a_killed_command_left_half_made_is_removed(new_name: str) -> None:
    resources = PathResources(new_name)
    subprocess.run(["ip", "netns", "add", resources.namespace("left")], check=True)
    resources.folder.mkdir(parents=True)
    assert paths.down(new_name) and not resources.anything_left
    for side in ("left", "right"):
        subprocess.run(["ip", "netns", "add", resources.namespace(side)], check=True)
    # The command that gave the order dies before it confirms the path.
    resources.folder.mkdir(parents=True)
    namespaces = (resources.namespace("left"), resources.namespace("right"))
    order = PathConfig(name=new_name, folder=str(resources.folder), namespaces=namespaces, profile=Profile())
    told = msgspec.msgpack.encode(order)
    daemon = subprocess.run(
        [sys.executable, "-m", "waystage.worlds.lab.wan.daemon"],
        input=len(told).to_bytes(4, "big") + told,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (daemon.returncode, daemon.stdout) == (1, b"ready\n"), daemon.stderr
    assert paths.down(new_name) and not resources.anything_left


def test_a_failure_in_the_middle_leaves_nothing(new_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(side: str, other: str, mtu: int) -> str:
        return "exit 3\n" if side == "right" else "true\n"

    monkeypatch.setattr(paths, "_end_script", broken)
    with pytest.raises(paths.LabError):
        paths.up(new_name, Profile())
    assert not PathResources(new_name).anything_left and not PathResources(new_name).lock.exists()


def test_sigterm_ends_the_process_and_its_devices(new_name: str) -> None:
    resources = paths.up(new_name, Profile())
    process = resources.process
    assert process is not None
    os.kill(process.process.pid, signal.SIGTERM)
    wait_until(lambda: not process.alive)
    left = subprocess.run(
        [*resources.enter("left"), "ip", "-br", "link"], capture_output=True, text=True, check=True
    )
    assert "wan0" not in left.stdout


def test_without_root_it_says_so_first(tmp_path: Path) -> None:
    program = (
        "import os, sys; from waystage.cli.main import main; os.geteuid = lambda: 65534; main(sys.argv[1:])"
    )
    done = ran([sys.executable, "-c", program, "lab", "wan", "up", "nobody"], cwd=tmp_path)
    assert (done.code, "needs root" in done.err) == (5, True), done.err
