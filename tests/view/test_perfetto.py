"""A recorded run as a trace for Perfetto, and the files for Grafana."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness import command, ran
from waystage import events
from waystage.events import Envelope
from waystage.interconnect.generate import fat_tree
from waystage.view.feed import About, Feed
from waystage.view.openmetrics import metrics

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "demo"
    demo = REPOSITORY / "experiments/demo.yaml"
    ran(command("run", demo, "--on", "sim", "--sets", "1", "--out", out, "--quiet")).expect()
    return out


def test_a_trace_has_every_job_with_its_phases(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    ran(command("report", folder, "--perfetto", file)).expect()
    found = json.loads(file.read_text())["traceEvents"]
    jobs = json.loads((folder / "result.json").read_text())["jobs"]
    slices = [entry for entry in found if entry["ph"] == "X" and entry["name"] == "job"]
    assert len(slices) == len(jobs)
    assert {round(entry["dur"] / 1e6, 3) for entry in slices} == {
        round(job["ended_at_s"] - job["started_at_s"], 3) for job in jobs
    }
    inner = [entry for entry in found if entry["ph"] == "X" and entry["name"] == "computation"]
    whole = {(entry["pid"], entry["tid"]): entry for entry in slices}
    for entry in inner:
        job = whole[entry["pid"], entry["tid"]]
        assert job["ts"] - 1 <= entry["ts"] and entry["ts"] + entry["dur"] <= job["ts"] + job["dur"] + 1
    names = {entry["args"]["name"] for entry in found if entry["name"] == "process_name"}
    assert {"controller", "ecmp, set 1"} <= names
    assert any(entry["ph"] == "C" and entry["args"].get("mpi") for entry in found)
    assert any(entry["name"] == "Decided" for entry in found)


def test_the_dashboard_asks_only_for_metrics_that_are_served() -> None:
    dashboard = json.loads((REPOSITORY / "deploy/grafana/waystage.json").read_text())
    feed = Feed(About(title="", mode="live"))
    topology = fat_tree(4)
    told = [
        events.TopologyChanged(topology=topology),
        events.FlowStarted(flow_id="a:1", traffic="io", engine="copy"),
    ]
    feed.apply(
        Envelope(event=event, event_id=f"{n}", source="s.1", time_ns=n) for n, event in enumerate(told)
    )

    class Hub(list[int]):
        dropped = refused = 0

    class Server:
        refused = 0
        hub = Hub()
        stats = {"received": 0, "lost": 0, "dropped": 0}

    text = metrics(feed, Server())(Server())
    served = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    served |= {family.name for family in text_string_to_metric_families(text)}
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"waystage_\w+", target["expr"])
    }
    assert asked and asked <= served
