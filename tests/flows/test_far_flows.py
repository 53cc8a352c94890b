"""Copies between hosts, probes and proxies are wide-area flows, reported by the client's end alone."""

from __future__ import annotations

import os
from pathlib import Path

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
    started = heard.next(events.FlowStarted, timeout=60)
    assert (started.traffic, started.engine) == ("wan", "copy")
    assert started.source == events.FlowEndpoint(peer="127.0.0.1") and started.destination.host == "n1"
    assert {"rate", "mode", "pause"} <= set(started.controls)
    settings = events.FlowSettings(version=1, rate_bps=160_000_000, mode="modest")
    agent.adjusted(events.FlowAdjusted(flow_id=started.flow_id, settings=settings))
    out, err = copying.communicate(timeout=90)
    assert copying.returncode == 0, out + err
    finished = heard.next(events.FlowFinished)
    assert (finished.flow_id, finished.outcome) == (started.flow_id, "done")
    assert finished.bytes_done >= 8 << 20
    assert heard.queue.empty() or not isinstance(heard.queue.get(), events.FlowStarted), (
        "the server reports nothing"
    )


def test_a_probe_is_a_flow(agent: FlowAgent, heard: Heard, site: Site) -> None:
    site.serve(user="probe = true")
    trusted = ("--identity", site.folder / "client.key", "--server-key", site.server_key)
    site.ran(command("probe", f"ada@127.0.0.1:{site.port}", *trusted, "--quick", "--json")).expect()
    assert heard.next(events.FlowStarted).engine == "probe"
    assert heard.next(events.FlowFinished).outcome == "done"


def test_a_proxys_session_is_a_flow(agent: FlowAgent, heard: Heard, tmp_path: Path) -> None:
    proxies = Proxies(tmp_path)
    try:
        proxies.serve()
        running = proxies.proxy("--socks", "127.0.0.1:0")
        assert heard.next(events.FlowStarted).engine == "proxy"
        running.end()
        assert heard.next(events.FlowFinished).outcome == "done"
    finally:
        proxies.close()
