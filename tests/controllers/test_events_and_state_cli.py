"""`waystage events` and `waystage state` against a running controller."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, command, wait_until
from waystage.backplane import Backplane, BackplaneConfig
from waystage.controllers import GlobalController
from waystage.events import JobFinished, JobStarted
from waystage.policies.base import load_policy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Backplane]]:
    endpoint = f"unixsock-stream/{tmp_path}/b.sock"
    with (
        Backplane.open(BackplaneConfig(name="site", listen=(endpoint,))) as backplane,
        GlobalController(load_policy("null"), [], backplane, tmp_path / "state"),
    ):
        yield endpoint, backplane


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = command(*arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S)


def test_events_are_followed_and_filtered(site: tuple[str, Backplane]) -> None:
    endpoint, backplane = site
    argv = command("events", "--endpoint", endpoint, "--json", "--count", "1")
    with subprocess.Popen(
        [*argv, "--type", "JobStarted", "--job", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as follower:

        def has_ended() -> bool:
            backplane.publish(JobFinished(job_id="7"))
            backplane.publish(JobStarted(job_id="8", nodes=()))
            backplane.publish(JobStarted(job_id="7", nodes=("c1",)))
            return follower.poll() is not None

        wait_until(has_ended, what="the end of the command")
        assert follower.stdout is not None
        lines = follower.stdout.read().splitlines()
    assert follower.returncode == 0 and len(lines) == 1
    found = json.loads(lines[0])
    assert found["type"] == "JobStarted" and found["body"] == {"job_id": "7", "nodes": ["c1"]}


def test_states_are_shown_saved_and_compared(site: tuple[str, Backplane], tmp_path: Path) -> None:
    endpoint, backplane = site
    backplane.publish(JobStarted(job_id="7", nodes=("c1",)), confirm=True, timeout=WAIT_S)
    shown = json.loads(_run("state", "show", "--endpoint", endpoint, "--json").stdout)
    assert list(shown["jobs"]) == ["7"]
    first, second = str(tmp_path / "first.json"), str(tmp_path / "second.json")
    assert _run("state", "save", first, "--endpoint", endpoint).returncode == 0
    assert _run("state", "compare", first, first).returncode == 0
    backplane.publish(JobFinished(job_id="7"), confirm=True, timeout=WAIT_S)
    assert _run("state", "save", second, "--endpoint", endpoint).returncode == 0
    done = _run("state", "compare", first, second)
    assert done.returncode == 1 and "jobs" in done.stdout
    Path(second).write_text("no state")
    assert _run("state", "compare", first, second).returncode == 3


def test_without_a_controller_it_says_so(tmp_path: Path) -> None:
    done = _run("events", "--endpoint", f"unixsock-stream/{tmp_path}/none.sock", "--count", "1")
    assert done.returncode == 1 and "cannot reach" in done.stderr


def test_types_are_listed() -> None:
    types = json.loads(_run("events", "--list", "--json").stdout)["types"]
    assert "A host announced itself" in types["HostSeen"] and "JobStarted" in types
