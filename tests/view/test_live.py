"""The view of a live site: a real controller that is killed and comes back, and metrics that Prometheus can read."""

from __future__ import annotations

import signal
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness import wait_until
from view_support import Site
from waystage import events
from waystage.events import Envelope
from waystage.interconnect.generate import fat_tree
from waystage.view.feed import About, Feed
from waystage.view.openmetrics import metrics


def test_a_job_appears_and_the_decision_on_its_staging_names_it(site: Site) -> None:
    site.notify("job-start", "17", "--nodes", "c1,c2")
    site.notify("staging-start", "17")
    wait_until(lambda: "17" in site.now("jobs"), site.view, "the job")
    wait_until(
        lambda: any(
            row.get("cause", {}).get("text", "").startswith("job 17")
            for row in site.now("decisions").values()
        ),
        site.view,
        "the decision",
    )


def test_a_killed_controller_is_gone_and_comes_back_with_what_it_knew(site: Site) -> None:
    wait_until(lambda: site.now("publishers").get("site-1", {}).get("present"), site.view, "the controller")
    site.controller.send_signal(signal.SIGKILL)
    site.controller.wait()
    wait_until(
        lambda: site.now("publishers").get("site-1", {}).get("present") == 0, site.view, "its being gone"
    )
    site.control()
    wait_until(
        lambda: site.now("publishers").get("site-1", {}).get("present", 0) > 0, site.view, "its return"
    )
    site.notify("job-start", "18", "--nodes", "c3")
    wait_until(lambda: {"17", "18"} <= set(site.now("jobs")), site.view, "both jobs")
    wait_until(lambda: not site.now("jobs").get("17", {"ended": 1}).get("ended"), site.view, "the first job")


def test_prometheus_reads_the_metrics_of_a_site(site: Site) -> None:
    families = {family.name: family for family in text_string_to_metric_families(site.read("metrics"))}
    assert families["waystage_jobs_running"].samples[0].value >= 1
    assert families["waystage_events_received"].samples[0].value > 0
    links = {sample.labels["link"] for sample in families["waystage_link_capacity_bytes_per_second"].samples}
    assert len(links) == 11


class _Nothing:
    stats = {"received": 1, "lost": 0, "dropped": 0}
    refused = 0
    dropped = 0
    hub: Any = ()


def test_hostile_names_in_metrics_stay_labels() -> None:
    feed = Feed(About(title="", mode="live"))
    name = 'x"} 1\nwaystage_jobs_running 99\\'
    nasty = [
        events.TopologyChanged(topology=fat_tree(4)),
        events.FlowStarted(flow_id="a:1", traffic="io", engine=name),
        events.IoApplicationStarted(app="0/x", agent="a", host="h", ranks=1),
        events.AggregatorStarted(app="0/x", agent="a", aggregator=name, host=name),
    ]
    feed.apply(
        Envelope(event=event, event_id=str(n), source="s.1", time_ns=n) for n, event in enumerate(nasty)
    )
    feed.take(9)

    class Pages(list[int]):
        dropped = refused = 0

    class Server:
        refused = 0
        hub = Pages()

    text = metrics(feed, _Nothing())(Server())
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["waystage_jobs_running"].samples[0].value == 0
    assert families["waystage_aggregator_up"].samples[0].labels["aggregator"] == name
