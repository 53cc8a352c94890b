"""Measures a path, step by step.

Arrives: a session with a server, a plan.
Leaves: a report, filled step by step, so that an interruption leaves what was measured.
Must not know: the command line, how a session is established.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from waystage.stats import median, percentile
from waystage.task import Progress
from waystage.wan.probing.limits import verdict
from waystage.wan.probing.mtu import path_mtu
from waystage.wan.probing.plan import (
    LOSS_PACKET_BYTES,
    LOSS_PACKETS_PER_S,
    LOSS_SHARE,
    UNKNOWN_BPS,
    Direction,
    Plan,
)
from waystage.wan.probing.points import Point, point
from waystage.wan.probing.report import WORDS, Report, RoundTrip, Way, milliseconds, rate_text
from waystage.wan.probing.sweep import Sweep

MTU_PACKETS = 8
"""Probes of each size: at 10 % loss, all are lost once in a hundred million times."""

LEAST_QUIET_S, MOST_QUIET_S = 0.15, 3.0
"""After this time without a packet of a train, the rest is lost."""

ORDINARY_MTU = 1500
"""The packet size where the path MTU is not measured."""

LARGE_FROM_BPS = 1e9
"""Above this rate packets have the path MTU: a machine sends fewer of them per second."""

LEAST_PACKETS = 200
"""The least packets of a train: fewer give no estimate of loss."""


class Session(Protocol):
    """The interface of `waystage._native.WanProbe`."""

    @property
    def server(self) -> str: ...
    @property
    def most_rate_bytes_per_s(self) -> int: ...
    @property
    def unseen_bytes(self) -> int: ...
    def reach(self, wait_s: float) -> tuple[bool, bool, bool]: ...
    def echoes(
        self, count: int, interval_s: float, wait_s: float
    ) -> list[tuple[int, int, int, int, int]]: ...
    def train(
        self, up: bool, *, packets: int, bytes: int, interval_ns: int, checksum: bool, quiet_s: float
    ) -> Any: ...
    def stream(self, up: bool, duration_s: float) -> Any: ...


def measure(session: Session, plan: Plan, report: Report, progress: Progress) -> None:
    """Fill `report`. Raises what the session raises."""
    _Measuring(session, plan, report, progress).run()


class _Measuring:
    def __init__(self, session: Session, plan: Plan, report: Report, progress: Progress) -> None:
        self._session, self._plan, self._report, self._progress = session, plan, report, progress
        self._quiet_s = 1.0
        self._first_echoes: list[tuple[int, int, int, int, int]] = []
        self._drift = 0.0
        cap = 8.0 * session.most_rate_bytes_per_s
        self._most_bps = min(plan.most_bps, cap)
        self._cap = "what the server allows" if cap < plan.most_bps else "--max-rate"
        self._done = 0.0

    def run(self) -> None:
        began = time.monotonic()
        plan, report = self._plan, self._report
        report.server, report.header_bytes = self._session.server, self._session.unseen_bytes
        report.ways = {name: Way() for name in plan.directions}
        try:
            self._reach()
            open_ways = [name for name in plan.directions if report.ways[name].arrives]
            if "rtt" in plan.parts and report.udp and not report.blocked:
                self._say("round trip", 0.05)
                self._round_trip()
            for number, name in enumerate(open_ways):
                self._one(name, 0.1 + 0.7 * number / len(open_ways), 0.7 / len(open_ways))
            if report.round_trip is not None and "rate" in plan.parts and open_ways:
                self._say("clocks", 0.8)
                self._clocks()
            for name in open_ways:
                self._judge(report.ways[name])
            if "tcp" in plan.parts:
                for number, name in enumerate(plan.directions):
                    self._say(f"TCP, {WORDS[name]}", 0.85 + 0.07 * number)
                    report.ways[name].tcp = self._stream(name)
            self._say("done", 1.0)
        finally:
            report.seconds = time.monotonic() - began

    def _say(self, what: str, share: float) -> None:
        self._progress(what, share)

    def _reach(self) -> None:
        plan, report = self._plan, self._report
        self._say("does UDP get through", 0.0)
        offered, up, down = self._session.reach(plan.udp_wait_s)
        report.udp = offered and (up or down)
        if not offered:
            report.notes.append("the server has UDP switched off: only TCP is measured")
            return
        arrives: dict[Direction, bool] = {"up": up, "down": down}
        report.blocked = [name for name, works in arrives.items() if not works]
        for name, way in report.ways.items():
            way.arrives = arrives[name]
        report.notes += _blocked_notes(report.server, up, down, plan.udp_wait_s)

    def _round_trip(self) -> None:
        plan = self._plan
        found = self._session.echoes(plan.echo_count, plan.echo_interval_s, MOST_QUIET_S)
        if not found:
            self._report.notes.append("no small packet was answered: there is no round trip to report")
            return
        trips = [echo[2] for echo in found]
        self._report.round_trip = RoundTrip(
            sent=plan.echo_count,
            answered=len(found),
            min_ms=milliseconds(min(trips)),
            median_ms=milliseconds(median(trips)),
            p99_ms=milliseconds(percentile(trips, 99)),
            most_ms=milliseconds(max(trips)),
            drift_ppm=0.0,
        )
        self._quiet_s = min(MOST_QUIET_S, max(LEAST_QUIET_S, 2e-9 * percentile(trips, 99)))
        self._first_echoes = found
        for name, at in (("up", 3), ("down", 4)):
            way = self._report.ways.get(name)  # type: ignore[call-overload]
            if way is not None:
                delays = [echo[at] for echo in found]
                way.idle_queue_ms = milliseconds(median(delays) - min(delays))

    def _clocks(self) -> None:
        """The drift of one clock against the other, from the fastest echoes at the start and now (RFC 5905,
        section 10)."""
        found = self._session.echoes(50, self._plan.echo_interval_s, MOST_QUIET_S)
        if len(found) < 5 or len(self._first_echoes) < 5 or self._report.round_trip is None:
            return
        (t0, offset0), (t1, offset1) = _offset(self._first_echoes), _offset(found)
        if t1 - t0 < 1e9:
            return
        self._drift = (offset1 - offset0) / (t1 - t0)
        self._report.round_trip.drift_ppm = round(1e6 * self._drift, 2)

    def _one(self, name: Direction, share: float, width: float) -> None:
        """All UDP measurements of one direction."""
        plan, way, word = self._plan, self._report.ways[name], WORDS[name]
        if "mtu" in plan.parts:
            self._say(f"path MTU, {word}", share)
            way.mtu = path_mtu(lambda size: self._passes(name, size))
            if way.mtu is None:
                self._report.notes.append(f"{word}: not even small packets pass without being cut")
        if "rate" in plan.parts:
            sweep = Sweep(start_bps=plan.start_bps, most_bps=self._most_bps)
            while (rate := sweep.next()) is not None:
                tried = len(sweep.points)
                self._say(
                    f"rate, {word}: {rate_text(rate)}", share + width * (0.1 + 0.5 * tried / (tried + 6))
                )
                mtu = way.mtu or ORDINARY_MTU
                size = mtu if rate > LARGE_FROM_BPS else min(mtu, ORDINARY_MTU)
                sweep.add(self._train(name, rate, size, plan.train_s, bare=False))
            way.sweep = sweep.points
        if "loss" in plan.parts:
            self._say(f"loss, {word}", share + 0.7 * width)
            rate, size = self._loss_rate(way)
            way.loss = self._train(name, rate, size, plan.duration_s, bare=True)
            if way.loss.spoilt:
                self._report.invalid.append(f"{word}: {way.loss.machine}: the loss is not to be believed")

    def _loss_rate(self, way: Way) -> tuple[float, int]:
        """The rate and the packet size of the loss measurement."""
        mtu = min(way.mtu or ORDINARY_MTU, ORDINARY_MTU)
        small = min(LOSS_PACKET_BYTES, mtu)
        if self._plan.loss_bps is not None:
            rate = min(self._plan.loss_bps, self._most_bps)
            return rate, min(mtu, max(small, round(rate / 8 / LOSS_PACKETS_PER_S)))
        carried = max((p.offered_bps for p in Sweep(0, 0, points=way.sweep).carried()), default=None)
        rate = min(UNKNOWN_BPS, self._most_bps) if carried is None else carried * LOSS_SHARE
        return min(rate, 8.0 * small * LOSS_PACKETS_PER_S), small

    def _train(self, name: Direction, rate: float, size: int, seconds: float, *, bare: bool) -> Point:
        interval_ns = max(1, round(8e9 * size / rate))
        # A slow train is not made much longer for the sake of its packets.
        least = min(LEAST_PACKETS, round(4 * self._plan.train_s * 1e9 / interval_ns))
        found = self._session.train(
            name == "up",
            packets=max(2, least, round(seconds * 1e9 / interval_ns)),
            bytes=size - self._session.unseen_bytes,
            interval_ns=interval_ns,
            checksum=not bare,
            quiet_s=self._quiet_s,
        )
        return point(found, 8e9 * size / interval_ns, size, name == "up")

    def _passes(self, name: Direction, size: int) -> bool:
        found = self._session.train(
            name == "up",
            packets=MTU_PACKETS,
            bytes=size - self._session.unseen_bytes,
            interval_ns=max(2_000_000, round(8e9 * size / self._most_bps)),
            checksum=True,
            quiet_s=self._quiet_s,
        )
        return bool(found["received"] + found["damaged"])

    def _judge(self, way: Way) -> None:
        """The result of the sweep, corrected for clock drift."""
        if not way.sweep:
            return
        start = self._first_echoes[0][1] if self._first_echoes else way.sweep[0].at_ns
        sign = 1 if way is self._report.ways.get("up") else -1
        way.sweep = [p.shifted(round(-sign * self._drift * (p.at_ns - start))) for p in way.sweep]
        way.base_ns = min(p.least_ns for p in way.sweep)
        sweep = Sweep(0, 0, points=way.sweep)
        way.verdict = verdict(
            sweep.carried(),
            sweep.refused(),
            base_ns=way.base_ns,
            most_bps=self._most_bps,
            cap=self._cap,
            known_loss=None if way.loss is None else way.loss.loss,
        )

    def _stream(self, name: Direction) -> dict[str, Any] | None:
        seconds = self._plan.stream_s
        found = self._session.stream(name == "up", seconds)
        if found["bytes"] == 0 or found["ns"] == 0:
            self._report.notes.append(f"{WORDS[name]}: nothing came over TCP within {seconds:g} s")
            return None
        late_s = found["ns"] / 1e9 - seconds / 2
        return {
            "rate_bps": round(8e9 * found["bytes"] / found["ns"]),
            "late_rate_bps": round(8 * found["late_bytes"] / late_s) if late_s > 0.2 else None,
            "seconds": round(found["ns"] / 1e9, 3),
            "congestion": found["congestion"],
            "retransmits": found["retransmits"],
            "round_trip_ms": round(found["rtt_us"] / 1e3, 3),
            "window_bytes": found["window_bytes"],
        }


def _offset(echoes: list[tuple[int, int, int, int, int]]) -> tuple[int, float]:
    """When, and by how much the server's clock is ahead: from the echo with the shortest round trip, which waited
    least."""
    best = min(echoes, key=lambda echo: echo[2])
    return best[1], (best[3] - best[4]) / 2


def _blocked_notes(server: str, up: bool, down: bool, wait_s: float) -> list[str]:
    port = server.rpartition(":")[2]
    if up and down:
        return []
    if up:
        return [
            f"UDP is blocked on the way back: the server's packets did not come within {wait_s:g} s, though ours arrive there:"
            f" have UDP from port {port} let in here"
        ]
    if down:
        return [
            f"UDP is blocked on the way there: ours did not arrive within {wait_s:g} s, though the server's come here:"
            f" have UDP port {port} let in at the server"
        ]
    return [
        f"UDP is blocked: nothing arrived at the server within {wait_s:g} s, and nothing that it sent to the address of the TCP"
        f" connection came here: have UDP port {port} let through"
    ]
