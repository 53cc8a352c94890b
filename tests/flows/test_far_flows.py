"""Copies between hosts, probes and proxies are wide-area flows, at the client's end and as sessions of the server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flow_support import Heard
from harness import command
from proxy_support import Proxies
from remote_copy_support import Site
from waystage import events
from waystage.flows.agent import FlowAgent


def test_a_copy_between_hosts_is_one_flow_and_obeys(agent: FlowAgent, heard: Heard, site: Site) -> None:
    (site.given / "far").write_bytes(os.urandom(8 << 20))
    site.serve()
    copying = site.begin(
        "ada@127.0.0.1:" + str(site.given / "far"), site.folder / "near", "--bandwidth-limit", "4M"
    )
    started = begun(heard, "copy")
    assert started.traffic == "wan"
    assert started.source == events.FlowEndpoint(peer="127.0.0.1") and started.destination.host == "n1"
    assert started.destination.targets == (device(site.folder),)
    assert {"rate", "mode", "pause"} <= set(started.controls)
    settings = events.FlowSettings(version=1, rate_bps=160_000_000, mode="modest")
    agent.adjusted(events.FlowAdjusted(flow_id=started.flow_id, settings=settings))
    out, err = copying.communicate(timeout=90)
    assert copying.returncode == 0, out + err
    finished = ended(heard, started)
    assert finished.outcome == "done" and finished.bytes_done >= 8 << 20


def test_a_servers_session_is_a_flow_says_what_limits_it_and_obeys(
    agent: FlowAgent, heard: Heard, site: Site
) -> None:
    (site.given / "far").write_bytes(os.urandom(12 << 20))
    site.serve()
    copying = site.begin(
        "ada@127.0.0.1:" + str(site.given / "far"), site.folder / "near", "--bandwidth-limit", "1M"
    )
    started = begun(heard, "serve")
    assert started.source.targets == (device(site.given),) and started.traffic == "wan"
    assert started.destination == events.FlowEndpoint(peer="127.0.0.1")
    assert set(started.controls) == {"rate", "pause"} and started.job_id is None
    limited(heard, started, "rate")
    asked = events.FlowSettings(version=1, paused=True)
    agent.adjusted(events.FlowAdjusted(flow_id=started.flow_id, settings=asked))
    limited(heard, started, "paused")
    assert copying.poll() is None, "it waits for the server"
    asked = events.FlowSettings(version=2)
    agent.adjusted(events.FlowAdjusted(flow_id=started.flow_id, settings=asked))
    out, err = copying.communicate(timeout=120)
    assert copying.returncode == 0, out + err
    assert ended(heard, started).bytes_done > 1 << 20


def begun(heard: Heard, engine: str) -> events.FlowStarted:
    while True:
        started = heard.next(events.FlowStarted, timeout=60)
        if started.engine == engine:
            return started


def ended(heard: Heard, started: events.FlowStarted) -> events.FlowFinished:
    while True:
        finished = heard.next(events.FlowFinished, timeout=60)
        if finished.flow_id == started.flow_id:
            return finished


def limited(heard: Heard, started: events.FlowStarted, by: str) -> None:
    """Returns once the flow says so: progress comes once a second."""
    said = []
    for _ in range(60):
        for use in heard.next(events.FlowProgress, timeout=60).flows:
            if use.flow_id == started.flow_id:
                said.append(use.limited_by)
                if use.limited_by == by:
                    return
    pytest.fail(f"{started.engine} is never limited by {by}, but by {sorted(set(said))}")


def device(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"n1/device:{os.major(number)}:{os.minor(number)}"


def test_a_probe_is_a_flow(agent: FlowAgent, heard: Heard, site: Site) -> None:
    site.serve(user="probe = true")
    trusted = ("--identity", site.folder / "client.key", "--server-key", site.server_key)
    site.ran(command("probe", f"ada@127.0.0.1:{site.port}", *trusted, "--quick", "--json")).expect()
    begun(heard, "probe")
    assert heard.next(events.FlowFinished).outcome == "done"


def test_a_proxys_session_is_a_flow(agent: FlowAgent, heard: Heard, tmp_path: Path) -> None:
    proxies = Proxies(tmp_path)
    try:
        proxies.serve()
        running = proxies.proxy("--socks", "127.0.0.1:0")
        started, session = begun(heard, "proxy"), begun(heard, "serve")
        assert session.source.peer and session.destination.host == "n1"
        limited(heard, started, "source")
        running.end()
        assert ended(heard, started).outcome == "done"
    finally:
        proxies.close()
