"""An engine reports what it moves, and obeys; without an agent it works as it does today."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flow_support import Heard, Serve, Task
from harness import WAIT_S, wait_until
from waystage import events, flows
from waystage.flows import FlowDescription, FlowEnd, reporter
from waystage.flows.agent import FlowAgent

COPY = FlowDescription("staging", "copy", job_id="17", destination=FlowEnd(peer="far"), mode="fair")


ENGINE = """
import time
from flow_support import Task
from waystage import flows
with flows.reported(Task(), flows.FlowDescription("staging", "copy")):
    time.sleep(600)
"""


def adjusted(flow_id: str, version: int = 1, **settings: object) -> events.FlowAdjusted:
    return events.FlowAdjusted(flow_id=flow_id, settings=events.FlowSettings(version=version, **settings))  # type: ignore[arg-type]


def test_a_flow_is_reported_from_start_to_end(agent: FlowAgent, heard: Heard) -> None:
    task = Task()
    with flows.reported(task, COPY) as report:
        started = heard.next(events.FlowStarted)
        task.bytes = 1000
        used = heard.next(events.FlowProgress)
        while not used.flows[0].rate_bps:
            used = heard.next(events.FlowProgress)
            task.bytes += 1000
        task.bytes = 1_000_000
    finished = heard.next(events.FlowFinished)
    assert started.flow_id.startswith("n1:") and report.flow_id == started.flow_id
    assert (started.traffic, started.engine, started.job_id) == ("staging", "copy", "17")
    assert started.source.host == "n1" and started.destination == events.FlowEndpoint(peer="far")
    assert started.user and started.controls == Task.controls
    assert used.agent == "n1" and used.flows[0].bytes_done > 0
    assert finished == events.FlowFinished(flow_id=started.flow_id, bytes_done=1_000_000)


@pytest.mark.parametrize(
    ("error", "outcome"), [(KeyboardInterrupt(), "cancelled"), (OSError("disk full"), "failed")]
)
def test_an_exception_decides_the_outcome(
    agent: FlowAgent, heard: Heard, error: BaseException, outcome: str
) -> None:
    with pytest.raises(type(error)), flows.reported(Task(), COPY):
        raise error
    assert heard.next(events.FlowFinished).outcome == outcome


def test_settings_reach_the_task_before_its_next_report_and_are_reported(
    agent: FlowAgent, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "REPORT_S", 1e6)
    task = Task()
    with flows.reported(task, COPY):
        flow_id = heard.next(events.FlowStarted).flow_id
        agent.adjusted(adjusted(flow_id, 3, rate_bps=8000, mode="modest", loaders=2, paused=True))
        told = dict(task.told.get(timeout=WAIT_S) for _ in range(4))
        assert told == {"rate": 1000, "mode": "modest", "loaders": 2, "paused": True}
        while heard.next(events.FlowProgress).flows[0].version != 3:
            pass
        agent.adjusted(adjusted(flow_id, 4))
        told = dict(task.told.get(timeout=WAIT_S) for _ in range(3))
        assert told == {"rate": None, "mode": "fair", "paused": False}, "the mode is the user's again"


def test_without_an_agent_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "absent.sock"))
    with flows.reported(Task(), COPY) as report:
        assert report.flow_id == ""
    monkeypatch.setenv("WAYSTAGE_FLOWS", "none")
    with flows.reported(Task(), COPY):
        pass


def test_a_restarted_agent_hears_of_it_again_and_old_settings_are_lifted(
    serve: Serve, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    agent, task = serve(), Task()
    with flows.reported(task, COPY):
        first = heard.next(events.FlowStarted).flow_id
        agent.adjusted(adjusted(first, paused=True))
        while task.told.get(timeout=WAIT_S) != ("paused", True):
            pass
        agent.stop()
        serve()
        assert heard.next(events.FlowsListed).flows == ()
        second = heard.next(events.FlowStarted).flow_id
        while task.told.get(timeout=WAIT_S) != ("paused", False):
            pass
    assert second != first
    assert heard.next(events.FlowFinished).flow_id == second
    assert len([r for r in caplog.records if r.name.startswith("waystage.flows.reporter")]) == 1


def test_what_an_agent_that_is_gone_asked_for_is_lifted(
    serve: Serve, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "LIFT_AFTER_S", 0.1)
    agent, task = serve(), Task()
    with flows.reported(task, COPY):
        agent.adjusted(adjusted(heard.next(events.FlowStarted).flow_id, paused=True))
        while task.told.get(timeout=WAIT_S) != ("paused", True):
            pass
        agent.stop()
        while task.told.get(timeout=WAIT_S) != ("paused", False):
            pass


def test_settings_that_no_controller_repeats_are_lifted(serve: Serve, heard: Heard) -> None:
    agent, task = serve(lease_s=0.5), Task()
    with flows.reported(task, COPY):
        agent.adjusted(adjusted(heard.next(events.FlowStarted).flow_id, paused=True))
        while task.told.get(timeout=WAIT_S) != ("paused", True):
            pass
        while task.told.get(timeout=WAIT_S) != ("paused", False):
            pass


def test_an_agent_that_hangs_delays_no_task(
    serve: Serve, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, goes_on = serve(), threading.Event()
    monkeypatch.setattr(agent, "line", lambda connection, data: goes_on.wait(WAIT_S))
    began = time.monotonic()
    with flows.reported(Task(), COPY):
        pass
    took_s = time.monotonic() - began
    goes_on.set()
    assert took_s < WAIT_S / 3


def test_a_controller_that_forgot_a_flow_hears_of_it_again(agent: FlowAgent, heard: Heard) -> None:
    with flows.reported(Task(), COPY):
        first = heard.next(events.FlowStarted)
        agent.adjusted(events.FlowAdjusted(flow_id=first.flow_id, settings=events.FlowSettings()))
        assert heard.next(events.FlowStarted) == first


def test_a_killed_engine_is_a_lost_flow(agent: FlowAgent, heard: Heard) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE], env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    ) as engine:
        started = heard.next(events.FlowStarted)
        engine.kill()
    assert heard.next(events.FlowFinished) == events.FlowFinished(flow_id=started.flow_id, outcome="lost")


def test_a_task_that_refuses_a_setting_goes_on(
    agent: FlowAgent, heard: Heard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mode: str) -> None:
        raise ValueError(f"unknown mode {mode}")

    task = Task()
    monkeypatch.setattr(task, "set_mode", refuse)
    with caplog.at_level(logging.WARNING), flows.reported(task, COPY):
        agent.adjusted(adjusted(heard.next(events.FlowStarted).flow_id, mode="none-such", paused=True))
        while task.told.get(timeout=WAIT_S) != ("paused", True):
            pass
    assert "unknown mode none-such" in caplog.text
    wait_until(lambda: heard.next(events.FlowFinished).outcome == "done")
