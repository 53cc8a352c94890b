"""A copy is a flow of the controller, and a policy or its user paces it: with a real controller and a real copy."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness import WAIT_S, command, ran, wait_until

Process = subprocess.Popen[Any]

POLICY = '''
from waystage.events import FlowStarted, JobFinished, Pause, Resume, SetMode

class HoldsJob:
    """Pauses flows of job `held` until job `first` has ended."""

    name = "holds-job"

    def __call__(self, event, state):
        if isinstance(event, FlowStarted) and event.job_id == "held":
            return [Pause(flow_id=event.flow_id), SetMode(flow_id=event.flow_id, mode="modest")]
        if isinstance(event, JobFinished) and event.job_id == "first":
            return [Resume(flow_id=flow.flow_id) for flow in state.flows_of("held")]
        return []
'''


class Site:
    """A global controller in a folder, and programs of its machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "holding.py").write_text(POLICY)
        (folder / "data").write_bytes(os.urandom(1 << 20) * 24)
        self.endpoint = f"unixsock-stream/{folder}/backplane.sock"
        self.environment = os.environ | {
            "PYTHONPATH": str(folder),
            "WAYSTAGE_FLOWS": str(folder / "flows.sock"),
            "WAYSTAGE_ENDPOINT": self.endpoint,
        }
        self.stack = ExitStack()

    def controller(self) -> Process:
        """Start it, and wait until it is ready."""
        words = ["controller", "--listen", self.endpoint, "--policy", "holding:HoldsJob"]
        process = self.program(
            *words, "--state-dir", self.folder / "state", "--ready-file", self.folder / "ready"
        )
        wait_until((self.folder / "ready").exists, process, "the controller's start")
        return process

    def copy(self, name: str, *words: object) -> Process:
        return self.program("copy", self.folder / "data", self.folder / name, *words)

    def program(self, *words: object) -> Process:
        process = subprocess.Popen(
            command(*words), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def run(self, *words: object) -> Any:
        return ran(command(*words, "--json"), env=self.environment).expect().json

    def flows(self, *words: object) -> list[dict[str, Any]]:
        flows: list[dict[str, Any]] = self.run("flows", *words)["flows"]
        return flows

    def flow(self, holds: Callable[[dict[str, Any]], object], alive: Process | None = None) -> dict[str, Any]:
        """The only flow, once this holds for it, while the program `alive` runs."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = self.flows()
            return len(found) == 1 and bool(holds(found[0]))

        wait_until(look, alive, what="what is expected of the flow")
        return found[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.stack:
        yield made


def test_a_policy_pauses_a_copy_and_lets_it_go_on(site: Site) -> None:
    site.controller()
    copying = site.copy("copy", "--job", "held", "--bandwidth-limit", "2M")
    flow = site.flow(
        lambda flow: flow["limited_by"] == "paused" and flow["kept"] == flow["settings"]["version"], copying
    )
    assert (flow["traffic"], flow["engine"], flow["job_id"]) == ("staging", "copy", "held")
    assert flow["settings"]["paused"] and flow["bytes"] == 24 << 20
    done = [-1]

    def stands() -> bool:
        # Progress comes once a second. What was on its way when it was paused is still reported.
        time.sleep(2.0)
        done.append(flow_now()["bytes_done"])
        return done[-1] == done[-2]

    def flow_now() -> dict[str, Any]:
        return site.flow(lambda flow: True, copying)

    wait_until(stands, copying, what="a copy that stands still")
    assert done[-1] < 16 << 20, "it was paused at its beginning"
    assert copying.poll() is None
    site.run("notify", "job-start", "first", "--nodes", "n1")
    site.run("notify", "job-end", "first")
    out, err = copying.communicate(timeout=WAIT_S)
    assert copying.returncode == 0, out + err
    assert (site.folder / "copy").read_bytes() == (site.folder / "data").read_bytes()
    wait_until(lambda: site.flows() == [], what="the end of the flow")


def test_its_user_paces_a_flow_and_a_restarted_controller_knows_it_again(site: Site) -> None:
    controller = site.controller()
    copying = site.copy("copy", "--bandwidth-limit", "250k")  # for longer than the test
    flow = site.flow(lambda flow: flow["rate_bps"] > 0, copying)
    assert flow["traffic"] == "io" and flow["job_id"] is None
    site.run("flows", "pause", flow["flow_id"])
    site.flow(lambda flow: flow["limited_by"] == "paused")
    assert site.flows("--local")[0]["settings"]["paused"]
    controller.terminate()
    controller.communicate(timeout=WAIT_S)
    site.controller()
    again = site.flow(lambda again: again["flow_id"] != flow["flow_id"] and again["rate_bps"] > 0)
    site.run("flows", "set", again["flow_id"], "--bandwidth-limit", "1MB/s")
    site.flow(lambda flow: flow["settings"].get("rate_bps") == 8_000_000 and flow["kept"] > 0)
    failed = ran(command("flows", "set", again["flow_id"], "--mode", "modest"), env=site.environment)
    assert failed.code == 3 and "does not obey mode" in failed.err
    site.run("flows", "set", again["flow_id"], "--bandwidth-limit", "off")
    copying.terminate()
    copying.communicate(timeout=WAIT_S)
    wait_until(lambda: site.flows() == [], what="the end of the flow")


def test_events_of_flows_are_shown_in_words_and_doctor_finds_the_agent(site: Site) -> None:
    site.controller()
    watching = site.program("events", "--type", "FlowStarted", "--type", "FlowRefused", "--count", 2)
    assert watching.stderr is not None and "following" in watching.stderr.readline()
    copying = site.copy("copy", "--job", "held", "--bandwidth-limit", "4M")
    shown, _ = watching.communicate(timeout=WAIT_S)
    assert " staging job held " in shown and "copy does not obey mode but " in shown
    assert "held" in ran(command("flows"), env=site.environment).expect().out
    checks = {
        check["name"]: check
        for check in ran(command("doctor", "--json"), env=site.environment).json["checks"]
    }
    assert "answered in" in checks["flow agent"]["detail"]
    copying.kill()


def test_job_ids_with_control_characters_are_refused_before_anything_runs(site: Site) -> None:
    for words in (["copy", "data", "x"], ["compare", "a", "b"], ["dedup", "."], ["load", "."]):
        done = ran(command(*words, "--job", "17\n18"), env=site.environment, cwd=site.folder)
        assert done.code == 2 and "holds control characters" in done.err and done.err.count("\n") < 6


def test_a_copy_works_as_before_where_the_agent_hangs_or_is_gone(site: Site) -> None:
    controller = site.controller()
    copying = site.copy("copy", "--bandwidth-limit", "1M")  # for longer than it takes to see it
    site.flow(lambda flow: True, copying)
    controller.kill()
    controller.communicate()
    out, err = copying.communicate(timeout=WAIT_S)
    assert copying.returncode == 0, out + err
    assert err.count("flow agent") == 1, err
    assert "copied" in out
