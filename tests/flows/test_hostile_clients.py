"""No process can speak for another's flow, flood the control plane, or learn what is not its user's."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flow_support import START, Heard, Lines, Serve, Task
from harness import WAIT_S, folder_for_all, wait_until
from waystage import events, flows
from waystage.backplane import Backplane
from waystage.flows import FlowDescription
from waystage.flows.agent import AgentLimits, FlowAgent
from waystage.local_rpc import LocalClient

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

AS_STRANGER = """
import json, os, sys
from waystage.local_client import LocalClient
os.setgid(65534); os.setuid(65534)
with LocalClient(sys.argv[1]) as client:
    for line in sys.stdin:
        client.send(line.strip().encode())
        answer = client.receive(90.0)
        print((answer or b"null").decode(), flush=True)
"""


@pytest.fixture
def shared(serve: Serve, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowAgent]:
    """An agent on a socket that every user can reach, with tight limits."""
    with folder_for_all("run", 0o755) as folder:
        path = folder / "flows.sock"
        monkeypatch.setenv("WAYSTAGE_FLOWS", str(path))
        with FlowAgent("n1", path, heard.queue.put, limits=AgentLimits(flows_per_user=3)) as agent:
            yield agent


class Stranger:
    """Lines of another user's process, one connection each."""

    def __init__(self, path: Path) -> None:
        words = [sys.executable, "-c", AS_STRANGER, str(path)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, **message: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def stranger_at(path: Path) -> Iterator[Stranger]:
    made = Stranger(path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


@needs_root
def test_the_user_is_the_kernels_word_and_only_root_names_another(shared: FlowAgent, heard: Heard) -> None:
    with stranger_at(shared.path) as stranger:
        answer = stranger.say(**START, user="root")
        assert answer == {"type": "refused", "why": "only root may name another user"}
        assert stranger.say(**START)["type"] == "accepted"
        assert heard.next(events.FlowStarted).user == pwd.getpwuid(STRANGER).pw_name
    mine = Lines(shared.path)
    assert (mine.say(**START, user="ada") or {})["type"] == "accepted"
    assert heard.next(events.FlowStarted).user == "ada"


@needs_root
def test_a_stranger_neither_sees_nor_changes_a_flow(shared: FlowAgent, heard: Heard) -> None:
    mine = Lines(shared.path)
    flow_id = (mine.say(**START) or {})["flow_id"]
    with stranger_at(shared.path) as stranger:
        refused = stranger.say(type="change", flow_id=flow_id, paused=True)
        unknown = stranger.say(type="change", flow_id="n1:0", paused=True)
        assert refused["type"] == unknown["type"] == "refused"
        assert refused["why"].replace(flow_id, "n1:0") == unknown["why"], (
            "it does not tell whether the flow exists"
        )
        assert stranger.say(type="show") == {"type": "flows", "flows": []}
        elsewhere = stranger.say(type="change", flow_id="n2:1", paused=True)
        assert "not this node's" in elsewhere["why"]
    assert [flow["flow_id"] for flow in (mine.say(type="show") or {})["flows"]] == [flow_id]
    assert (mine.say(type="change", flow_id=flow_id, paused=True) or {})["type"] == "changed"
    asked = heard.next(events.FlowRequested)
    assert [events.decode_action(raw) for raw in asked.actions] == [events.Pause(flow_id=flow_id)]
    missing = mine.say(type="change", flow_id=flow_id, mode="modest") or {}
    assert "does not obey mode" in missing["why"]


def test_root_changes_flows_of_other_nodes_only_where_the_global_controller_runs(
    serve: Serve, heard: Heard, tmp_path: Path
) -> None:
    with FlowAgent("top", tmp_path / "top.sock", heard.queue.put, anywhere=True) as top:
        assert (Lines(top.path).say(type="change", flow_id="n7:1", rate_bps=800) or {})["type"] == "changed"
        asked = heard.next(events.FlowRequested)
        assert asked.belongs_to() == "n7" and asked.flow_id == "n7:1"
    refused = Lines(serve().path).say(type="change", flow_id="n7:1", rate_bps=800) or {}
    assert "as root where the global controller runs" in refused["why"]


@needs_root
def test_one_user_begins_a_bounded_number_of_flows(shared: FlowAgent, heard: Heard) -> None:
    program = AS_STRANGER.replace(
        "with LocalClient(sys.argv[1]) as client:",
        "for client in [LocalClient(sys.argv[1]) for _ in range(1000)]:",
    )
    program = program.replace("for line in sys.stdin:", "for line in [sys.argv[2]]:")
    done = subprocess.run(
        [sys.executable, "-c", program, str(shared.path), json.dumps(START)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert len(kinds) == 1000 and kinds.count("accepted") == 3
    assert (Lines(shared.path).say(**START) or {})["type"] == "accepted", "others are served"


def test_a_flood_of_lines_ends_that_connection_alone(agent: FlowAgent, heard: Heard) -> None:
    good, bad = Lines(agent.path), Lines(agent.path)
    for lines in (good, bad):
        assert (lines.say(**START) or {})["type"] == "accepted"
    first, second = (heard.next(events.FlowStarted).flow_id for _ in range(2))
    line = json.dumps({"type": "progress", "bytes_done": 1}).encode()
    with pytest.raises(OSError):
        while True:
            bad.client.send(line * 1 + b"\n" + line)
    assert heard.next(events.FlowFinished) == events.FlowFinished(
        flow_id=second, bytes_done=0, outcome="lost"
    )
    assert heard.next(events.FlowProgress).flows[0].flow_id == first
    assert len((good.say(type="show") or {})["flows"]) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"type": "start"}',
        b'{"type": "none"}',
        json.dumps(START | {"job_id": "17\n18"}).encode(),
        json.dumps(START | {"job_id": "\x1b[31m"}).encode(),
        json.dumps(START | {"job_id": "x" * 300}).encode(),
        json.dumps(START | {"engine": "c\x00py"}).encode(),
        json.dumps(START | {"source": {"targets": ["t"] * 5000}}).encode(),
        json.dumps(START | {"bytes": -1}).encode(),
        json.dumps(START | {"flow_id": "n1:stolen"}).encode(),
        json.dumps(START | {"traffic": "all"}).encode(),
        b'{"type": "progress", "bytes_done": 1}',
        b'{"type": "change", "flow_id": "n1:1", "rate_bps": 1e300}',
        b"\xff\xfe",
        b"[" * 60_000,
        b"x" * 100_000,
    ],
)
def test_a_bad_line_is_refused_with_a_sentence_and_ends_the_connection(
    agent: FlowAgent, heard: Heard, line: bytes
) -> None:
    client = Lines(agent.path)
    client.client.send(line)
    answer = client.answer()
    if answer is not None:
        assert answer["type"] == "refused" and answer["why"].isprintable()
        assert client.answer() is None
    assert (Lines(agent.path).say(**START) or {})["type"] == "accepted"
    assert heard.next(events.FlowStarted).job_id == "17"


def test_half_a_line_is_nothing(agent: FlowAgent, heard: Heard) -> None:
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(str(agent.path))
        half.sendall(json.dumps(START).encode()[:20])
    whole = Lines(agent.path)
    assert (whole.say(**START) or {})["type"] == "accepted"
    heard.next(events.FlowStarted)
    # Progress may have come meanwhile; an end of what never began has not.
    whole.client.close()
    said: list[events.Event] = []
    while not said or not isinstance(said[-1], events.FlowFinished):
        said.append(heard.queue.get(timeout=WAIT_S))
    assert not [event for event in said if isinstance(event, events.FlowStarted)]
    assert heard.queue.empty()


@needs_root
def test_an_engine_does_not_talk_to_an_agent_of_another_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("ready", flush=True)
connection, _ = listening.accept()
print(connection.recv(100), flush=True)
"""
    with folder_for_all("run", 0o777) as folder:
        path = folder / "flows.sock"
        words = [sys.executable, "-c", program, str(path)]
        false = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert false.stdout is not None and false.stdout.readline() == "ready\n"
        monkeypatch.setenv("WAYSTAGE_FLOWS", str(path))
        with flows.reported(Task(), FlowDescription("io", "load")):
            assert false.stdout.readline() == "b''\n", "nothing is said to it"
        false.wait(WAIT_S)
    wait_until(lambda: f"user {STRANGER} serves it" in caplog.text, what="a word of it in the log")


def test_an_event_of_another_agents_flow_is_refused(tmp_path: Path) -> None:
    """What access rules go by is the scope in the key: an event must belong to it."""
    with Backplane.open() as backplane:
        told = backplane.subscribe(None)
        forged = events.FlowFinished(flow_id="n2:17")
        data = events.encode(events.envelope(forged, backplane.source))
        key = f"waystage/v1/control/FlowFinished/n1/{backplane.source}"
        backplane._session.put(key, data)
        mixed = events.FlowProgress(agent="n1", flows=(events.FlowUse(flow_id="n2:17", bytes_done=1),))
        key = f"waystage/v1/event/FlowProgress/n1/{backplane.source}"
        backplane._session.put(key, events.encode(events.envelope(mixed, backplane.source)))
        backplane.publish(events.FlowFinished(flow_id="n1:17"))
        item = told.get(WAIT_S)
        assert item is not None and item.event == events.FlowFinished(flow_id="n1:17")
        wait_until(lambda: backplane.stats.malformed == 2, what="both being counted")


def test_many_connections_come_and_go_and_leave_nothing(agent: FlowAgent, heard: Heard) -> None:
    def come_and_go() -> None:
        for _ in range(50):
            with LocalClient(agent.path) as client:
                client.send(json.dumps(START).encode())

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not agent._flows and not agent._lines and not agent._per_user, what="their end")
