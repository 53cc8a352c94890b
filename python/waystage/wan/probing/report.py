"""The report of a probe.

Arrives: figures of the steps.
Leaves: one object for programs (docs/reference/probe.md), and words for people.
Must not know: sessions, terminals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from waystage.wan.probing.limits import Verdict
from waystage.wan.probing.plan import Direction
from waystage.wan.probing.points import Point

WORDS: dict[Direction, str] = {"up": "there", "down": "back"}


@dataclass
class RoundTrip:
    """Of small packets, in ms, without the server's processing; of `sent` packets `answered` came back."""

    sent: int
    answered: int
    min_ms: float
    median_ms: float
    p99_ms: float
    most_ms: float
    drift_ppm: float
    """The drift of the server's clock against this one, in ppm; one-way delays are corrected for it."""


@dataclass
class Way:
    """One direction; None and empty where it was not measured."""

    arrives: bool | None = None
    mtu: int | None = None
    loss: Point | None = None
    sweep: list[Point] = field(default_factory=list)
    verdict: Verdict | None = None
    base_ns: int | None = None
    idle_queue_ms: float | None = None
    """Half of the small packets waited longer than the quickest of them by this, with nothing else of ours on the
    path."""
    tcp: dict[str, Any] | None = None


@dataclass
class Report:
    """A completed or interrupted probe."""

    server: str = ""
    header_bytes: int = 28
    udp: bool | None = None
    round_trip: RoundTrip | None = None
    ways: dict[Direction, Way] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    """Why the loss is not valid: the machines rather than the path lost packets."""
    blocked: list[Direction] = field(default_factory=list)
    """Directions in which UDP is blocked."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As JSON: docs/reference/probe.md documents the keys."""
        return {
            "server": self.server,
            "header_bytes": self.header_bytes,
            "udp": self.udp,
            "blocked": list(self.blocked),
            "round_trip": asdict(self.round_trip) if self.round_trip else None,
            "directions": {name: _way(way) for name, way in self.ways.items()},
            "notes": list(self.notes),
            "valid": not self.invalid,
            "invalid": list(self.invalid),
            "seconds": round(self.seconds, 2),
        }


def _way(way: Way) -> dict[str, Any]:
    loss = way.loss
    return {
        "arrives": way.arrives,
        "mtu": way.mtu,
        "loss": None if loss is None else _loss(loss),
        "rate": None if way.verdict is None else _rate(way),
        "sweep": [_step(p, way.base_ns or p.least_ns) for p in sorted(way.sweep, key=lambda p: p.target_bps)],
        "idle_queue_ms": way.idle_queue_ms,
        "tcp": way.tcp,
    }


def _loss(point: Point) -> dict[str, Any]:
    low, high = point.loss_range
    return {
        "share": round(point.loss, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "sent": point.sent,
        "received": point.received,
        "lost": point.lost,
        "duplicated": point.duplicated,
        "reordered": point.reordered,
        "reordered_by": point.reordered_by,
        "damaged": point.damaged,
        "damage_seen": point.bare,
        "offered_bps": round(point.offered_bps),
        "delivered_bps": round(point.delivered_bps),
        "packet_bytes": point.packet_bytes,
        "delay_p50_ms": milliseconds(point.median_ns - point.least_ns),
        "delay_p99_ms": milliseconds(point.p99_ns - point.least_ns),
        "machine": point.machine,
    }


def _rate(way: Way) -> dict[str, Any]:
    verdict = way.verdict
    assert verdict is not None, "asked for only where there is one"
    return {
        "achievable_bps": round(verdict.achievable_bps),
        "limit": verdict.kind,
        "why": verdict.why,
        "bottleneck_bps": None if verdict.bottleneck_bps is None else round(verdict.bottleneck_bps),
        "burst_bytes": verdict.burst_bytes,
        "queue_ms": milliseconds(verdict.queue_ns),
        "most_queue_ms": milliseconds(verdict.most_queue_ns),
    }


def _step(point: Point, base_ns: int) -> dict[str, Any]:
    return {
        "target_bps": round(point.target_bps),
        "offered_bps": round(point.offered_bps),
        "delivered_bps": round(point.delivered_bps),
        "loss": round(point.loss, 6),
        "damaged": point.damaged,
        "queue_ms": milliseconds(point.median_ns - base_ns),
        "queue_p99_ms": milliseconds(point.p99_ns - base_ns),
        "growth": round(point.growth, 5),
        "packets": point.sent,
        "machine": point.machine,
    }


def milliseconds(ns: float) -> float:
    """Rounded to three decimals."""
    return round(ns / 1e6, 3)


def rate_text(bps: float) -> str:
    """97.3 Mbit/s."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bps >= size:
            return f"{bps / size:.4g} {unit}"
    return f"{bps / 1e3:.4g} kbit/s"


def in_words(report: Report) -> str:
    """For people."""
    lines = [f"path to {report.server}, in {report.seconds:.0f} s"]
    trip = report.round_trip
    if trip is not None:
        lines.append(
            f"round trip  {trip.median_ms:.2f} ms (least {trip.min_ms:.2f}, 99 % below {trip.p99_ms:.2f};"
            f" {trip.answered} of {trip.sent} small packets answered)"
        )
    names = list(report.ways)
    rows: list[tuple[str, list[str]]] = [("", [WORDS[name] for name in names])]
    ways = [report.ways[name] for name in names]
    for label, cell in _ROWS:
        cells = [cell(way) for way in ways]
        if any(cells):
            rows.append((label, [c or "-" for c in cells]))
    wide = [max(len(cells[i]) for _, cells in rows) for i in range(len(names))]
    first = max(len(label) for label, _ in rows)
    for label, cells in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, wide, strict=True)]
        lines.append(f"{label.ljust(first)}  {'  '.join(padded)}".rstrip())
    lines += [f"{WORDS[n]}: {w.verdict.why}" for n, w in report.ways.items() if w.verdict is not None]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"not valid: {why}" for why in report.invalid]
    return "\n".join(lines)


def _loss_text(way: Way) -> str:
    if way.loss is None:
        return ""
    low, high = way.loss.loss_range
    return f"{100 * way.loss.loss:.3g} % ({100 * low:.2g} to {100 * high:.2g})"


def _damage_text(way: Way) -> str:
    if way.loss is None:
        return ""
    seen = "" if way.loss.bare else " (others the kernel drops)"
    return f"{way.loss.damaged:,} of {way.loss.sent:,}{seen}"


def _tcp_text(way: Way) -> str:
    if way.tcp is None:
        return ""
    return (
        f"{rate_text(way.tcp['rate_bps'])} ({way.tcp['congestion']}, {way.tcp['retransmits']:,} sent again)"
    )


def _count_text(key: str) -> Any:
    def text(way: Way) -> str:
        return "" if way.loss is None else f"{getattr(way.loss, key):,} of {way.loss.sent:,}"

    return text


def _queues(way: Way) -> str:
    verdict = way.verdict
    if verdict is None:
        return ""
    return f"{verdict.queue_ns / 1e6:.2f} ms, at most {verdict.most_queue_ns / 1e6:.1f} ms"


_ROWS: Sequence[tuple[str, Any]] = (
    ("over UDP", lambda way: "" if way.arrives in (True, None) else "nothing arrives"),
    ("loss", _loss_text),
    ("duplicated", _count_text("duplicated")),
    ("reordered", _count_text("reordered")),
    ("damaged", _damage_text),
    ("path MTU", lambda way: "" if way.mtu is None else f"{way.mtu:,} bytes"),
    ("rate", lambda way: "" if way.verdict is None else rate_text(way.verdict.achievable_bps)),
    ("queue at it", _queues),
    ("TCP", _tcp_text),
)
