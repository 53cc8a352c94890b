"""The I/O process and the flow agent: what is reported, what is applied, and that neither needs the other."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flow_support import Heard
from harness import wait_until
from waystage import events
from waystage.collective import reported, reporter
from waystage.collective.settings import WEIGHT_ONE, Settings
from waystage.collective.storage import storage_of
from waystage.flows.agent import FlowAgent


class Process:
    """A stand-in for the native process, where only what it says and is asked for matters."""

    def __init__(self) -> None:
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.noticed = os.eventfd(0, os.EFD_NONBLOCK)
        self.asked: list[tuple[Any, ...]] = []
        self.apps: dict[str, dict[str, Any]] = {}
        self.served: dict[str, dict[str, int]] = {}

    def status(self) -> dict[str, Any]:
        return {"apps": dict(self.apps), "served": dict(self.served), "lost": []}

    def fileno(self) -> int:
        return self.noticed

    def say(self, **notice: Any) -> None:
        self.said.put(notice)
        os.eventfd_write(self.noticed, 1)

    def notices(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.noticed)
        while not self.said.empty():
            found.append(self.said.get())
        return found

    def set_server_map(self, app: str, aggregators: Sequence[str]) -> None:
        self.asked.append(("map", app, tuple(aggregators)))

    def grant(self, app: str, weight: int, until_ns: int) -> None:
        self.asked.append(("grant", app, weight, until_ns))

    def set_scheduled(self, app: str, scheduled: bool) -> None:
        self.asked.append(("scheduled", app, scheduled))

    def begin(self, app: str = "a") -> None:
        self.apps[app] = {
            "ranks": 4,
            "phase": "idle",
            "op_bytes": 0,
            "epoch": 1,
        }
        self.say(event="app_started", app=app)

    def write(self, app: str = "a", size: int = 100) -> None:
        self.say(event="requested", app=app, path=b"/tmp/x", write=True, bytes=size)
        self.say(event="completed", app=app, write=True, bytes=size, waited_ns=5, took_ns=70)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def agent(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowAgent]:
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "flows.sock"))
    with FlowAgent("n1", tmp_path / "flows.sock", heard.queue.put) as running:
        yield running


def test_an_application_and_its_operations_are_reported(agent: FlowAgent, heard: Heard) -> None:
    process = Process()
    process.served["a"] = {"bytes": 100, "busy_ns": 7, "windows": 2, "queue_bytes": 0}
    with reported(process, "c1/2"):
        process.begin()
        started = heard.next(events.IoApplicationStarted)
        assert (started.app.partition("/")[2], started.host, started.ranks) == ("a", "c1", 4)
        assert heard.next(events.AggregatorStarted).aggregator == "c1/2"
        process.write()
        requested = heard.next(events.IoRequested)
        assert (requested.op, requested.bytes) == (1, 100) and requested.storage
        completed = heard.next(events.IoCompleted)
        assert (completed.op, completed.bytes, completed.waited_ns, completed.took_ns) == (1, 100, 5, 70)
        process.say(event="map_adopted", app="a", epoch=2, aggregators=["c1/2@h:1"])
        assert heard.next(events.ServerMapAdopted).aggregators == ("c1/2",)
        process.say(event="aggregator_lost", address="c9@h:2")
        assert heard.next(events.AggregatorLost).aggregator == "c9"
    assert heard.next(events.IoApplicationFinished).outcome == "done"


def test_the_service_of_an_aggregator_is_known_before_the_next_operation(
    agent: FlowAgent, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the node of rank 0 hears that operations end. The reports of each second are too late for a policy."""
    monkeypatch.setattr(reporter, "REPORT_S", 1e6)
    process = Process()
    with reported(process, "c1"):
        process.begin()
        heard.next(events.IoApplicationStarted)
        for size in (100, 250):
            process.served["a"] = {"bytes": size, "busy_ns": 7, "windows": 2, "queue_bytes": 0}
            told = 0
            while told != size:
                told = max((use.bytes for use in heard.next(events.AggregatorReport).servers), default=0)


def test_operations_that_follow_each_other_fast_are_reported_together_and_none_is_left_out(
    agent: FlowAgent, heard: Heard
) -> None:
    process = Process()
    with reported(process, "c1"):
        process.begin()
        heard.next(events.IoApplicationStarted)
        began = time.monotonic()
        for _ in range(500):
            process.write()
            time.sleep(0.001)
        told = messages = took_ns = 0
        while told < 500:
            completed = heard.next(events.IoCompleted)
            told, messages, took_ns = told + completed.operations, messages + 1, took_ns + completed.took_ns
        at_most = (time.monotonic() - began) / reporter.BURST_S + 2
        assert told == 500 and completed.op == 500 and messages <= at_most and took_ns == 500 * 70


def test_a_grant_reaches_the_process_and_its_next_operation_waits_again(
    agent: FlowAgent, heard: Heard
) -> None:
    process = Process()
    with reported(process, "c1"):
        process.begin()
        app = heard.next(events.IoApplicationStarted).app

        def adjust(version: int, weight: float, left_s: float = 20.0) -> None:
            until = time.time_ns() + round(left_s * 1e9)
            wanted = events.IoSettings(version=version, weight=weight, until_ns=until)
            agent.adjusted(events.IoAdjusted(app=app, agent="n1", settings=wanted))

        adjust(1, 0.0)
        wait_until(lambda: ("scheduled", "a", True) in process.asked)
        adjust(2, 0.5)
        wait_until(
            lambda: any(a[0] == "grant" and a[2] == WEIGHT_ONE // 2 and a[3] > 0 for a in process.asked)
        )
        seen = 0
        while seen < 2:  # its reports name the version that it keeps to
            seen = max((p.version for p in heard.next(events.AggregatorReport).processes), default=0)
        adjust(3, 0.0, left_s=0.3)
        wait_until(lambda: process.asked[-1] == ("scheduled", "a", False))  # waiting ends


def test_an_operation_that_waits_for_a_grant_is_reported_at_once(
    agent: FlowAgent, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of the agent, no report and no poll wakes the reporter here: only the process does."""
    monkeypatch.setattr(reporter, "REPORT_S", 1e6)
    monkeypatch.setattr("waystage.flows.agent.LEASE_S", 1e6)
    process = Process()
    with reported(process, "c1"):
        process.begin()
        app = heard.next(events.IoApplicationStarted).app
        wanted = events.IoSettings(version=1, weight=0.0, until_ns=time.time_ns() + 10**15)
        agent.adjusted(events.IoAdjusted(app=app, agent="n1", settings=wanted))
        wait_until(lambda: ("scheduled", "a", True) in process.asked)
        with monkeypatch.context() as polls:
            polls.setattr(reporter, "POLL_S", 1000.0)
            for _ in range(3):  # the first may be seen by the last poll of the usual length
                process.write()
                wait_until(process.said.empty)
        process.write()
    assert heard.next(events.IoRequested).op == 1


def test_without_an_agent_the_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "none.sock"))
    process = Process()
    with reported(process, "c1"):
        process.begin()
        process.write()
        wait_until(lambda: process.said.empty())
    assert all(call == ("grant", "a", WEIGHT_ONE, 0) for call in process.asked)


def test_an_agent_that_comes_later_hears_of_what_runs(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "flows.sock"))
    process = Process()
    with reported(process, "c1"):
        process.begin()
        wait_until(lambda: process.said.empty())
        for _ in range(2):
            with FlowAgent("n1", tmp_path / "flows.sock", heard.queue.put):
                assert heard.next(events.IoApplicationStarted).ranks == 4


def test_settings_that_are_repeated_use_no_grant_twice() -> None:
    process = Process()
    settings = Settings(process, "a")
    line = {"version": 4, "aggregators": ["c1"], "weight": 1.0, "left_ns": 10**9}
    settings.apply(line, 0)
    before = list(process.asked)
    settings.apply(line, 5)
    assert process.asked == [*before, ("scheduled", "a", True)]
    settings.lift()
    assert process.asked[-3:] == [("map", "a", ()), ("grant", "a", WEIGHT_ONE, 0), ("scheduled", "a", False)]


def test_the_storage_of_a_path_is_the_mount_below_it() -> None:
    table = (
        "22 1 0:21 / / rw - ext4 /dev/sda1 rw\n"
        "40 22 0:50 / /scratch rw shared:1 - lustre 10.0.0.1@tcp:/scratch rw\n"
        "41 22 0:51 / /scratch/my\\040dir rw - nfs server:/x rw\n"
        "broken line\n"
    )
    assert storage_of(b"/home/a", table) == "ext4 /dev/sda1"
    assert storage_of(b"/scratch/a", table) == "lustre 10.0.0.1@tcp:/scratch"
    assert storage_of(b"/scratchy", table) == "ext4 /dev/sda1"
    assert storage_of(b"/scratch/my dir/f", table) == "nfs server:/x"
    assert storage_of(b"/home", "") == ""
