"""I/O processes of nodes at the flow agent: they speak for applications of one user, and what they are asked ends."""

from __future__ import annotations

import json
import os
import time

import pytest

from flow_support import Heard, Lines, Serve
from flows.test_hostile_clients import STRANGER, needs_root, shared, stranger_at  # noqa: F401
from waystage import events
from waystage.flows.agent import FlowAgent

ME = f"{os.getuid()}/a"
START = {"type": "io-start", "app": "a", "host": "c1", "ranks": 4, "job_id": "17", "aggregators": ["c1"]}


def begin(agent: FlowAgent, **more: object) -> Lines:
    lines = Lines(agent.path)
    lines.client.send(json.dumps(START | more).encode())
    return lines


def tell(lines: Lines, **message: object) -> None:
    lines.client.send(json.dumps(message).encode())


def test_an_application_its_aggregators_and_operations_are_published_under_its_users_id(
    agent: FlowAgent, heard: Heard
) -> None:
    lines = begin(agent)
    started = heard.next(events.IoApplicationStarted)
    assert (started.app, started.agent, started.ranks, started.job_id) == (ME, "n1", 4, "17")
    assert heard.next(events.AggregatorStarted).aggregator == "c1"
    tell(lines, type="io-request", op=1, bytes=100, storage="lustre")
    assert heard.next(events.IoRequested) == events.IoRequested(
        app=ME, agent="n1", op=1, bytes=100, storage="lustre"
    )
    use = {"aggregator": "c1", "bytes": 100, "busy_ns": 5, "writes": 1, "epoch": 2}
    tell(lines, type="io-report", version=3, servers=[use])
    tell(lines, type="io-complete", op=1, bytes=100, took_ns=7)
    report = heard.next(events.AggregatorReport)
    while not report.servers:  # the second's own, before it
        report = heard.next(events.AggregatorReport)
    assert report.servers == (
        events.AggregatorUse(app=ME, aggregator="c1", bytes=100, busy_ns=5, writes=1, epoch=2),
    )
    assert report.processes == (events.IoUse(app=ME, host="c1", version=3),)
    assert heard.next(events.IoCompleted).took_ns == 7
    tell(lines, type="io-adopted", epoch=2, aggregators=["c1"])
    assert heard.next(events.ServerMapAdopted).epoch == 2
    tell(lines, type="io-server", aggregator="c9", lost=True, reason="connection reset")
    assert heard.next(events.AggregatorLost).aggregator == "c9"
    tell(lines, type="io-finish")
    assert heard.next(events.IoApplicationFinished).outcome == "done"


def test_a_process_that_is_killed_is_a_lost_one(agent: FlowAgent, heard: Heard) -> None:
    lines = begin(agent)
    heard.next(events.IoApplicationStarted)
    lines.client.close()
    assert heard.next(events.IoApplicationFinished).outcome == "lost"


def test_settings_reach_the_process_with_the_time_that_is_left_and_are_lifted_without_a_controller(
    serve: Serve, heard: Heard
) -> None:
    agent = serve(lease_s=0.5)
    lines = begin(agent)
    heard.next(events.IoApplicationStarted)
    wanted = events.IoSettings(version=1, aggregators=("c2",), weight=0.0, until_ns=time.time_ns() + 10**13)
    agent.adjusted(events.IoAdjusted(app=ME, agent="n1", settings=wanted))
    first = lines.answer() or {}
    assert (first["version"], first["aggregators"], first["weight"]) == (1, ["c2"], 0.0)
    assert 0 < first["left_ns"] <= 60 * 10**9, "no application waits for longer than a lease"
    lifted = lines.answer() or {}
    assert (lifted["version"], lifted["aggregators"], lifted["left_ns"]) == (0, [], 0)
    agent.adjusted(events.IoAdjusted(app="0/other", agent="n1", settings=wanted))
    tell(lines, type="io-report")
    assert lines.client.receive(0.3) is None


@pytest.mark.parametrize(
    "message",
    [
        {"type": "io-request", "op": 0},
        {"type": "io-report", "servers": [{"aggregator": "c7", "bytes": 1}]},
        {"type": "io-start", "app": "b", "host": "c1"},
        {"type": "io-complete", "op": 1, "took_ns": -1},
        {"type": "io-adopted", "epoch": 1, "aggregators": ["a\nb"]},
    ],
)
def test_what_makes_no_sense_is_refused_and_ends_the_connection(
    agent: FlowAgent, message: dict[str, object]
) -> None:
    lines = begin(agent)
    answer = lines.say(**message)
    assert answer is not None and answer["type"] == "refused" and answer["why"]
    assert lines.answer() is None


def test_a_message_before_the_start_is_refused(agent: FlowAgent) -> None:
    answer = Lines(agent.path).say(type="io-request", op=1)
    assert answer is not None and "before its start" in answer["why"]


@needs_root
def test_a_stranger_cannot_speak_of_anothers_application(shared: FlowAgent, heard: Heard) -> None:  # noqa: F811
    begin(shared)
    assert heard.next(events.IoApplicationStarted).app == ME
    with stranger_at(shared.path) as stranger:
        assert stranger.process.stdin is not None
        stranger.process.stdin.write(json.dumps(START | {"app": ME}) + "\n")
        stranger.process.stdin.flush()
        assert heard.next(events.IoApplicationStarted).app == f"{STRANGER}/{ME}"
