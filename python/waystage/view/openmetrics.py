"""Metrics of a view in the format of OpenMetrics 1.0, for Prometheus.

Arrives: a feed, the counts of its subscription, a server.
Leaves: text.
Must not know: HTTP, the backplane.

Names follow Prometheus' rules: base units, `_total` for counters. Labels come from events and are escaped. One series a
link and direction, class and direction; none a job or flow, whose names are without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from waystage.events import CLASSES
from waystage.view.feed import Feed
from waystage.view.frames import Frame, decode

Sample = tuple[dict[str, str], float]


class Counts(Protocol):
    """Of a subscription."""

    @property
    def stats(self) -> dict[str, int]: ...


class Pages(Protocol):
    """Of a server."""

    refused: int

    @property
    def hub(self) -> Any: ...


def metrics(feed: Feed, counts: Counts) -> Callable[[Pages], str]:
    """What the server answers to `/metrics`."""

    def text(server: Pages) -> str:
        stats = counts.stats
        hub = server.hub
        own: list[tuple[str, str, str, list[Sample]]] = [
            ("waystage_events_received", "counter", "Events that arrived.", [({}, stats["received"])]),
            (
                "waystage_event_gaps",
                "counter",
                "Publishers of which control events were lost.",
                [({}, stats["lost"])],
            ),
            (
                "waystage_telemetry_dropped",
                "counter",
                "Telemetry events that were dropped.",
                [({}, stats["dropped"])],
            ),
            ("waystage_view_pages", "gauge", "Open pages.", [({}, len(hub))]),
            (
                "waystage_view_pages_dropped",
                "counter",
                "Pages dropped because they read nothing.",
                [({}, hub.dropped)],
            ),
            (
                "waystage_view_pages_refused",
                "counter",
                "Pages refused because too many were open.",
                [({}, hub.refused)],
            ),
            ("waystage_view_connections_refused", "counter", "Connections refused.", [({}, server.refused)]),
        ]
        return render([*_of_frame(decode(feed.whole()[1]), feed.by_type), *own])

    return text


def render(families: Iterable[tuple[str, str, str, list[Sample]]]) -> str:
    """Name, type, help and samples of each family."""
    lines: list[str] = []
    for name, kind, about, samples in families:
        lines += [f"# TYPE {name} {kind}", f"# HELP {name} {about}"]
        suffix = "_total" if kind == "counter" else ""
        for labels, value in samples:
            inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            lines.append(
                f"{name}{suffix}{{{inside}}} {value:g}" if inside else f"{name}{suffix} {value:.17g}"
            )
    return "\n".join([*lines, "# EOF", ""])


def _of_frame(frame: Frame, by_type: dict[str, int]) -> list[tuple[str, str, str, list[Sample]]]:
    rows = frame.set
    status = rows["status"]["now"]
    capacity = {link["id"]: link["bps"] for link in (frame.topology or {}).get("links", ())}
    links: list[Sample] = []
    for name, row in rows.get("links", {}).items():
        for way, key in (("a to b", "ab"), ("b to a", "ba")):
            use = row.get(key) or [0] * (1 + len(CLASSES))
            parts = zip(("all", *CLASSES), use, strict=True)
            links += [({"link": name, "direction": way, "class": c}, n / 8) for c, n in parts]
    down: list[Sample] = [({"link": n}, row.get("down", 0)) for n, row in rows.get("links", {}).items()]
    publishers = rows.get("publishers", {}).items()
    flows: dict[tuple[str, str], int] = {}
    limits: dict[tuple[str, str], int] = {}
    for row in rows.get("flows", {}).values():
        if "ended" not in row and "class" in row:
            kind = (row["class"], row["engine"])
            flows[kind] = flows.get(kind, 0) + row["rate"]
            limit = (row["class"], row.get("limit", "unknown"))
            limits[limit] = limits.get(limit, 0) + 1
    aggregators: list[Sample] = [
        ({"application": app, "aggregator": s["name"], "host": s["host"]}, 0.0 if s["lost"] else 1.0)
        for app, row in rows.get("io", {}).items()
        for s in row["servers"]
    ]
    core: list[Sample] = [({"class": c}, status["rates"].get(c, 0) / 8) for c in CLASSES]
    return [
        (
            "waystage_events",
            "counter",
            "Events folded, by type.",
            [({"type": t}, n) for t, n in by_type.items()],
        ),
        ("waystage_core_bytes_per_second", "gauge", "Load from edge switches into the core.", core),
        ("waystage_link_bytes_per_second", "gauge", "Use of a link in one direction.", links),
        (
            "waystage_link_capacity_bytes_per_second",
            "gauge",
            "Capacity of a link in each direction.",
            [({"link": name}, bps / 8) for name, bps in capacity.items()],
        ),
        ("waystage_link_down", "gauge", "1 where a link is down; of collapsed links their number.", down),
        ("waystage_switches_down", "gauge", "Switches that are down.", [({}, len(rows.get("switches", {})))]),
        ("waystage_jobs_running", "gauge", "Jobs that run.", [({}, status["running"])]),
        ("waystage_jobs_staging", "gauge", "Jobs with a staging in progress.", [({}, status["staging"])]),
        ("waystage_flows_running", "gauge", "Flows in progress.", [({}, status["flows"])]),
        (
            "waystage_flow_bytes_per_second",
            "gauge",
            "Rate of the flows that are shown.",
            [({"class": c, "engine": e}, n / 8) for (c, e), n in flows.items()],
        ),
        (
            "waystage_flows_limited_by",
            "gauge",
            "Flows that are shown, by what limits them.",
            [({"class": c, "limit": limit}, n) for (c, limit), n in limits.items()],
        ),
        ("waystage_aggregator_up", "gauge", "1 where an aggregator serves its application.", aggregators),
        (
            "waystage_publisher_present",
            "gauge",
            "1 where a controller or agent is there.",
            [
                ({"publisher": name, "role": row["role"]}, float(row["present"] > 0))
                for name, row in publishers
                if row["role"] != "publisher" and row["since"]
            ],
        ),
        (
            "waystage_classes_separated",
            "gauge",
            "1 while classes use separate core switches.",
            [({}, float(status.get("separated", False)))],
        ),
    ]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
