"""A policy of a user cannot stop the controller: time, memory, exceptions, and answers that are no actions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystage import events
from waystage.controllers import guard
from waystage.controllers.engine import PolicyEngine
from waystage.controllers.guard import GuardConfig, GuardedPolicy, build
from waystage.interconnect.graphml import read_topology
from waystage.policies.base import PolicyError

POLICY = '''
import os, time
from waystage.events import AssignPaths, JobStarted, PathPlan, Pause, SetRate
from waystage.policies.base import Explained

class Moody:
    """Does what the id of a started job says."""
    name = "moody"

    def __init__(self, fails="") -> None:
        if fails == "loop":
            while True:
                pass
        if fails:
            raise ValueError(fails)
        self.kept = []

    def __call__(self, event, state):
        if not isinstance(event, JobStarted):
            return ()
        match event.job_id:
            case "loop":
                while True:
                    pass
            case "eat":
                while True:
                    self.kept.append(bytearray(1 << 20))
            case "exit":
                os._exit(3)
            case "raise":
                raise KeyError("no such core")
            case "leave":
                raise SystemExit(1)
            case "number":
                return [17]
            case "no-list":
                return 17
            case "wrong-type":
                return [SetRate(flow_id=3, rate_bps="fast")]
            case "change":
                state.jobs.clear()
                return ()
            case "pause":
                return [Pause(flow_id=flow_id) for flow_id in state.flows]
        print("on the way")
        return Explained.by([AssignPaths(plan=PathPlan(separated=True, seed=len(state.jobs)))], "more jobs")
'''


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyEngine]:
    (tmp_path / "moods.py").write_text(POLICY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.0)
    # The time limit is generous: the machine may be busy. What loops gets a shorter one.
    policy = build("moods:Moody", {}, GuardConfig(answer_s=60.0, memory="256 MiB"))
    assert isinstance(policy, GuardedPolicy) and policy.name == "moody"
    found = PolicyEngine(policy)
    happens(found, events.TopologyChanged(topology=read_topology("paper")))
    yield found
    policy.close()


def happens(engine: PolicyEngine, event: events.Event) -> list[events.Action]:
    happens.count += 1  # type: ignore[attr-defined]
    count: int = happens.count  # type: ignore[attr-defined]
    return engine.handle(
        events.Envelope(event=event, event_id=f"e{count}", source="s", seq=count, time_ns=count)
    )


happens.count = 0  # type: ignore[attr-defined]


def job(name: str) -> events.JobStarted:
    return events.JobStarted(job_id=name, nodes=("c1",))


def seeds(actions: list[events.Action]) -> list[int]:
    return [action.plan.seed for action in actions if isinstance(action, events.AssignPaths)]


def until_it_decides_again(engine: PolicyEngine) -> list[events.Action]:
    """What it answers to the first job after it was started again."""
    deadline = time.monotonic() + 120
    number = 0
    while True:
        number += 1
        actions = happens(engine, job(f"later{number}"))
        if engine.policy.name == "moody":
            return actions
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_answers_reasons_and_the_state_are_those_of_a_policy_in_the_controller(engine: PolicyEngine) -> None:
    assert seeds(happens(engine, job("a"))) == [1] and engine.reason == "more jobs"
    assert seeds(happens(engine, job("b"))) == [2]
    assert engine.state.requested is not None and engine.state.requested.seed == 2
    happens(engine, events.JobFinished(job_id="a"))
    assert seeds(happens(engine, job("c"))) == [2]


def test_one_that_raises_or_answers_no_action_does_nothing_on_that_event(engine: PolicyEngine) -> None:
    for mood in ("raise", "leave", "number", "no-list"):
        assert happens(engine, job(mood)) == []
        assert engine.failure is not None and engine.failed_name == "moody"
    assert engine.policy_errors == 4
    assert seeds(happens(engine, job("a"))) == [5] and engine.failure is None


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("loop", "no answer within 1 s"),
        ("eat", "limit of memory"),
        ("exit", "ended its process with status 3"),
        ("wrong-type", "no action"),
    ],
)
def test_one_that_is_ended_leaves_a_fallback_in_force_and_comes_back_with_the_state_of_then(
    engine: PolicyEngine, monkeypatch: pytest.MonkeyPatch, mood: str, words: str
) -> None:
    happens(engine, events.FlowStarted(flow_id="n1:1", traffic="io", engine="copy", controls=("pause",)))
    assert happens(engine, job("pause")) == [events.Pause(flow_id="n1:1")]
    assert seeds(happens(engine, job("a"))) == [2]
    with monkeypatch.context() as short:
        if mood == "loop":
            short.setattr(engine.policy, "_config", GuardConfig(answer_s=1.0, memory="256 MiB"))
        actions = happens(engine, job(mood))
    assert words in str(engine.failure) and "ecmp decides" in str(engine.failure)
    assert events.Resume(flow_id="n1:1") in actions, "no flow stays paused"
    plans = [action.plan for action in actions if isinstance(action, events.AssignPaths)]
    assert [plan.separated for plan in plans] == [False], "the fallback's paths"
    assert engine.policy.name == "ecmp"
    assert seeds(until_it_decides_again(engine)) == [len(engine.state.jobs)]


def test_one_that_fails_on_every_event_is_replaced(engine: PolicyEngine) -> None:
    for _ in range(guard.RAISES - 1):
        assert happens(engine, job("raise")) == []
    happens(engine, job("raise"))
    assert engine.policy.name == "ecmp" and f"failed on {guard.RAISES} events" in str(engine.failure)


def test_the_controllers_state_is_out_of_its_reach(engine: PolicyEngine) -> None:
    happens(engine, job("change"))
    assert list(engine.state.jobs) == ["change"]


def test_one_that_cannot_be_built_is_said_at_the_start(
    engine: PolicyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PolicyError, match="too old"):
        build("moods:Moody", {"fails": "too old"}, GuardConfig())
    with monkeypatch.context() as short:
        short.setattr(guard, "START_S", 3.0)
        with pytest.raises(PolicyError, match="was not built within"):
            build("moods:Moody", {"fails": "loop"}, GuardConfig())
    with pytest.raises(PolicyError, match="no Absent"):
        build("moods:Absent", {}, GuardConfig())
    with pytest.raises(PolicyError, match=r"fallback .*shipped"):
        build("moods:Moody", {}, GuardConfig(fallback="moods:Moody"))


def test_shipped_policies_stay_in_the_controller_unless_they_have_members_of_the_user(
    engine: PolicyEngine,
) -> None:
    assert not isinstance(build("ecmp", {}, GuardConfig()), GuardedPolicy)
    options = {"policies": ["moods:Moody"]}
    with pytest.raises(PolicyError, match="acts on"):  # built in its process
        build("combined", options, GuardConfig())
