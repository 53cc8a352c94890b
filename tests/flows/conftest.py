"""A flow agent on a separate socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_support import Heard, Serve
from waystage.flows.agent import AgentLimits, FlowAgent


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def serve(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    running: list[FlowAgent] = []
    monkeypatch.setenv("WAYSTAGE_FLOWS", str(tmp_path / "flows.sock"))

    def start(limits: AgentLimits | None = None, **more: Any) -> FlowAgent:
        agent = FlowAgent("n1", tmp_path / "flows.sock", heard.queue.put, limits=limits, **more)
        agent.start()
        running.append(agent)
        return agent

    yield start
    for agent in running:
        agent.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "waystage-local-rpc"]


@pytest.fixture
def agent(serve: Serve) -> FlowAgent:
    return serve()
