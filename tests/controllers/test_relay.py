"""The tiers node -> application -> global: nothing lost while one of them is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backplane_support import LoadSample
from harness import WAIT_S, wait_until
from waystage.backplane import Backplane, BackplaneConfig, NotConfirmed
from waystage.controllers import GlobalController
from waystage.controllers.relay import RelayConfig, RelayController
from waystage.events import (
    Decided,
    FlowAdjusted,
    FlowProgress,
    FlowSettings,
    FlowStarted,
    FlowUse,
    JobFinished,
    JobStarted,
    LinkDown,
    PathsRefused,
)
from waystage.policies.base import load_policy


class Site:
    """A global, an application and a node controller, with one socket each, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stacks: dict[str, ExitStack] = {}

    def endpoint(self, tier: str) -> str:
        return f"unixsock-stream/{self.folder}/{tier}.sock"

    def start_global(self) -> GlobalController:
        stack = self.stacks["global"] = ExitStack()
        config = BackplaneConfig(name="global", listen=(self.endpoint("global"),))
        backplane = stack.enter_context(Backplane.open(config))
        return stack.enter_context(
            GlobalController(load_policy("null"), [], backplane, self.folder / "global")
        )

    def start_relay(self, tier: str, above: str, config: RelayConfig | None = None) -> RelayController:
        stack = self.stacks[tier] = ExitStack()
        below = stack.enter_context(Backplane.open(BackplaneConfig(name=tier, listen=(self.endpoint(tier),))))
        up = BackplaneConfig(name=f"{tier}-up", connect=(self.endpoint(above),), connect_timeout_s=0.5)
        return stack.enter_context(RelayController(below, up, self.folder / tier, config))

    def client(self, tier: str) -> Backplane:
        stack = self.stacks.setdefault("clients", ExitStack())
        return stack.enter_context(
            Backplane.open(BackplaneConfig(name="client", connect=(self.endpoint(tier),)))
        )

    def stop(self, tier: str) -> None:
        self.stacks.pop(tier).close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for tier in ("clients", "node", "application", "global"):
        if tier in made.stacks:
            made.stop(tier)


def _jobs(controller: GlobalController) -> list[str]:
    return list(controller.snapshot().jobs)


def test_events_go_up_through_three_tiers_and_decisions_come_down(site: Site) -> None:
    top = site.start_global()
    site.start_relay("application", "global")
    site.start_relay("node", "application")
    client = site.client("node")
    decisions = client.subscribe(Decided)
    sent = client.publish(JobStarted(job_id="1", nodes=("c1",)), confirm=True, timeout=WAIT_S)
    assert _jobs(top) == ["1"]
    assert top.snapshot().time_ns == sent.time_ns, "it keeps the time it was published at"
    top.publish(Decided(policy="test", cause_id="x", actions=()))
    item = decisions.get(WAIT_S)
    assert item is not None and item.event == Decided(policy="test", cause_id="x", actions=())


def test_the_tier_above_may_be_away_and_the_publisher_gone(site: Site) -> None:
    relay = site.start_relay("node", "global")
    client = site.client("node")
    for number in range(100):
        client.publish(JobStarted(job_id=str(number), nodes=()))
    with pytest.raises(NotConfirmed):
        client.publish(JobFinished(job_id="none"), confirm=True, timeout=0.5)
    wait_until(lambda: relay.stats.waiting == 101, what="the arrival of all at the relay")
    site.stop("clients")
    assert relay.stats.up == 0
    top = site.start_global()
    wait_until(lambda: len(_jobs(top)) == 100)
    assert _jobs(top) == [str(number) for number in range(100)], "in order"


def test_a_relay_that_restarts_sends_what_the_tier_above_has_not_and_nothing_twice(site: Site) -> None:
    relay = site.start_relay("node", "global")
    client = site.client("node")
    for number in range(50):
        client.publish(JobStarted(job_id=str(number), nodes=()))
    wait_until(lambda: relay.stats.waiting == 50)
    site.stop("clients")
    site.stop("node")
    top = site.start_global()
    site.start_relay("node", "global")
    wait_until(lambda: len(_jobs(top)) == 50)
    events = top.snapshot().events
    site.stop("node")
    site.start_relay("node", "global")
    again = site.client("node")
    again.publish(JobStarted(job_id="last", nodes=()), confirm=True, timeout=WAIT_S)
    assert top.snapshot().events == events + 1


def test_telemetry_is_merged_on_its_way_up(site: Site) -> None:
    top = site.start_global()
    seen = top.backplane.subscribe(LoadSample)
    relay = site.start_relay("node", "global", RelayConfig(telemetry_interval_s=0.3))
    wait_until(lambda: relay.stats.connected)
    client = site.client("node")
    began, sent, got = time.monotonic(), 0, []

    def merged() -> bool:
        nonlocal sent
        sent += 1
        client.publish(LoadSample(value=sent))
        return relay.stats.telemetry_merged > 50

    def the_last_arrives() -> bool:
        client.publish(LoadSample(value=sent + 1))
        got.extend(item.event.value for item in seen.take(100, 0.3))  # type: ignore[attr-defined]
        return sent + 1 in got

    wait_until(merged, what="the merging of more than fifty")
    wait_until(the_last_arrives, what="the last at the top")
    assert got == sorted(got) and len(got) <= (time.monotonic() - began) / 0.3 + 1


def test_types_that_the_tier_above_does_not_want_stay_below(site: Site) -> None:
    top = site.start_global()
    site.start_relay("node", "global", RelayConfig(up=("JobFinished",), down=()))
    client = site.client("node")
    client.publish(JobStarted(job_id="1", nodes=()))
    client.publish(JobFinished(job_id="1"), confirm=True, timeout=WAIT_S)
    state = top.snapshot()
    assert list(state.jobs) == [] and list(state.finished) == ["1"]


def test_what_only_the_global_controller_knows_is_not_said_by_programs_of_a_node(site: Site) -> None:
    top = site.start_global()
    site.start_relay("node", "global")
    client = site.client("node")
    client.publish(LinkDown(link="a:1-b:1"))
    client.publish(PathsRefused(cause_id="x", switch="s1", reason="forged"))
    client.publish(JobStarted(job_id="1", nodes=("c1",)), confirm=True, timeout=WAIT_S)
    state = top.snapshot()
    assert list(state.jobs) == ["1"] and state.down_links == {} and state.events == 1


def test_settings_of_a_flow_come_down_to_its_agent_alone_and_progress_goes_up(site: Site) -> None:
    """Ten thousand nodes must not each be sent every setting."""
    top = site.start_global()
    site.start_relay("application", "global", RelayConfig(telemetry_interval_s=0.2))
    site.start_relay("node", "application", RelayConfig(telemetry_interval_s=0.2))
    agents = {name: site.client("node") for name in ("n1", "n2")}
    for name, client in agents.items():
        started = FlowStarted(flow_id=f"{name}:a", traffic="io", engine="load", job_id="1")
        client.publish(started, confirm=True, timeout=WAIT_S)
    told = {name: client.subscribe(FlowAdjusted, scope=name) for name, client in agents.items()}
    everything = site.client("node").subscribe(FlowAdjusted)

    def both_are_known() -> bool:
        for name, client in agents.items():
            use = FlowUse(flow_id=f"{name}:a", bytes_done=7)
            client.publish(FlowProgress(agent=name, flows=(use,)))
        time.sleep(0.3)
        return [flow.bytes_done for flow in top.snapshot().flows.values()] == [7, 7]

    wait_until(both_are_known, what="progress of both agents at the top")
    adjusted = FlowAdjusted(flow_id="n2:a", settings=FlowSettings(version=4, paused=True))

    def comes_down() -> bool:
        """Again until it does: a subscription is known above a moment after it was made."""
        top.publish(FlowAdjusted(flow_id="n3:a", settings=FlowSettings(version=1)))
        top.publish(adjusted)
        first = everything.get(1.0)
        assert first is None or first.event == adjusted, "those of n3 came down too"
        return first is not None

    wait_until(comes_down, what="the settings at the node")
    item = told["n2"].get(WAIT_S)
    assert item is not None and item.event == adjusted
    assert told["n1"].get(0.3) is None
