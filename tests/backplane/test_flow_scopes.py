"""A node's certificate speaks for its agent's flows, and for no others'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from certificates import Authority
from harness import WAIT_S, wait_until
from waystage.backplane import AccessRule, Backplane, BackplaneConfig, Tls
from waystage.events import (
    FlowAdjusted,
    FlowFinished,
    FlowProgress,
    FlowSettings,
    FlowStarted,
    FlowUse,
    IoStarted,
)

EVENTS = ("FlowStarted", "FlowProgress", "FlowFinished", "FlowsListed", "FlowRequested")


def _flow_rule(node: str) -> AccessRule:
    return AccessRule(names=(f"{node}.site",), publish=EVENTS, read=("FlowAdjusted",), scopes=(node,))


RULES = (
    AccessRule(names=("controller.site",), controller=True),
    AccessRule(names=("n1.site", "n2.site"), publish=("IoStarted",)),
    _flow_rule("n1"),
    _flow_rule("n2"),
)


@pytest.fixture
def site(tmp_path: Path, free_port: int) -> Iterator[dict[str, Backplane]]:
    """A controller's backplane, and the sessions of two nodes, over TLS."""
    authority = Authority(tmp_path)
    endpoint = f"tls/127.0.0.1:{free_port}"

    def tls(name: str) -> Tls:
        issued = authority.issue(name, "127.0.0.1", "localhost")
        return Tls(ca=authority.ca, certificate=issued.certificate, key=issued.key)

    with ExitStack() as stack:
        top = BackplaneConfig(name="top", listen=(endpoint,), tls=tls("controller.site"), access=RULES)
        opened = {"top": stack.enter_context(Backplane.open(top))}
        for node in ("n1", "n2"):
            config = BackplaneConfig(connect=(endpoint,), tls=tls(f"{node}.site"))
            opened[node] = stack.enter_context(Backplane.open(config))
        yield opened


def test_a_node_publishes_its_own_flows_alone(site: dict[str, Backplane]) -> None:
    told = site["top"].subscribe(None)
    started = FlowStarted(flow_id="n1:a", traffic="io", engine="load")

    def arrived() -> bool:
        site["n1"].publish(started)
        item = told.get(0.2)
        return item is not None and item.event == started

    wait_until(arrived, what="its own flow")
    site["n1"].publish(FlowStarted(flow_id="n2:b", traffic="io", engine="load"))
    site["n1"].publish(FlowFinished(flow_id="n2:b"))
    site["n1"].publish(FlowProgress(agent="n2", flows=(FlowUse(flow_id="n2:b", bytes_done=1),)))
    site["n1"].publish(IoStarted(job_id="end"))
    heard = []
    while not isinstance(heard[-1] if heard else None, IoStarted):
        item = told.get(WAIT_S)
        assert item is not None
        heard.append(item.event)
    assert all(event in (started, IoStarted(job_id="end")) for event in heard)


def test_settings_go_to_the_node_of_the_flow(site: dict[str, Backplane]) -> None:
    told = {node: site[node].subscribe(FlowAdjusted, scope=node) for node in ("n1", "n2")}
    wanted = FlowAdjusted(flow_id="n2:b", settings=FlowSettings(version=1, paused=True))

    def arrived() -> bool:
        site["top"].publish(wanted)
        item = told["n2"].get(0.2)
        return item is not None and item.event == wanted

    wait_until(arrived, what="the settings")
    assert told["n1"].get(0.3) is None


def test_a_node_sends_no_settings(site: dict[str, Backplane]) -> None:
    told = site["n2"].subscribe(FlowAdjusted, scope="n2")
    site["n1"].publish(FlowAdjusted(flow_id="n2:b", settings=FlowSettings(version=9, paused=True)))
    assert told.get(0.5) is None
