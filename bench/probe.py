"""How near `waystage probe` comes to the truth of an emulated path, in each direction; ping and iperf3 -u on the same
paths.

Paths of `waystage lab wan` with different loss in each direction, served every 50 us so that they are hardly late.
The truth of loss is what the path itself counted while the probe measured (`loss_error_points`;
`loss_error_configured_points` is against the configured probability, chance included). That of the round trip is how
long the very echoes were on the path, as the kernel saw them pass its ends (`rtt_error_pct`, of medians;
`rtt_error_configured_pct` is against both delays, lateness of the path's process included). That of the rate is the
link's. Each figure is the worst over paths and directions of the medians over turns. ping gives the round trip,
against its own echoes, and the loss of both directions together; iperf3 -u loss and jitter of one direction, at the
rate and packet size of the probe.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
import _wan_taps as taps
from _wan_paths import RIGHT, late, path, run_left, wrong_between

from waystage.bench import BenchError, BenchOptions, Figures, Turns, take_turns
from waystage.stats import median
from waystage.worlds.lab import wan

TICK_NS = 50_000
TURNS = 5
LOSS_BPS = 32e6
PACKET_BYTES = 400
HEADERS = 28
LEAST_ECHOES = 50
WAYS = {"up": "forward", "down": "back"}
TAKES_S = 300, 45


@dataclass(frozen=True)
class Case:
    """A path: delays in ms and losses in percent, there and back."""

    rate_mbit: float
    delays_ms: tuple[float, float]
    losses_pct: tuple[float, float]

    @property
    def name(self) -> str:
        return (
            f"{self.rate_mbit:g} Mbit/s, {self.delays_ms[0]:g}/{self.delays_ms[1]:g} ms,"
            f" {self.losses_pct[0]:g}/{self.losses_pct[1]:g} %"
        )

    @property
    def rtt_ms(self) -> float:
        """Both delays, and the transmission time of a small packet each way."""
        return sum(self.delays_ms) + 2 * 8 * 92 / self.rate_mbit / 1e3


CASES = (
    Case(100, (5, 5), (0, 0.1)),
    Case(100, (10, 10), (1, 5)),
    Case(100, (50, 50), (10, 0)),
    Case(50, (5, 20), (0.1, 10)),
)


FIGURES = (
    "loss_error_points",
    "loss_error_configured_points",
    "rtt_error_pct",
    "rtt_error_configured_pct",
    "rate_error_pct",
)
PEERS = (
    "ping_rtt_error_pct",
    "ping_rtt_error_configured_pct",
    "ping_loss_error_points",
    "iperf3_loss_error_points",
)


def run(options: BenchOptions) -> dict[str, Any]:
    cases = CASES[1:2] if options.quick else CASES
    contestants = {case.name: partial(_one, case, options.quick) for case in cases}
    turns = take_turns(options, contestants, turns=TURNS, invalid=invalid)
    slow = sum(
        rate is None for case in cases for row in turns.rows(case.name) for rate in row["rate_error_pct"]
    )
    return {
        "figures": {key: _worst(turns, key) for key in FIGURES},
        "peers": {key: _worst(turns, key) for key in PEERS},
        "details": turns.details() | {"rates_not_found_for_slow_machine": slow},
    }


def invalid(figures: Figures) -> str | None:
    return late(figures) or (None if figures["probe_valid"] else "the probe reports that it is not valid")


def _worst(turns: Turns, key: str) -> float:
    """The worst over paths and directions of the medians over turns."""
    worst = 0.0
    for name in turns.names:
        for of_direction in zip(*(row[key] for row in turns.rows(name)), strict=True):
            values = [value for value in of_direction if value is not None]
            worst = max(worst, median(values) if values else 0.0)
    return round(worst, 4)


def _one(case: Case, quick: bool, turn: int) -> Figures:
    properties = {
        "rate": f"{case.rate_mbit:g}Mbit",
        "delay": f"{case.delays_ms[0]:g}ms",
        "loss": f"{case.losses_pct[0]:g}%",
    }
    back = {"delay": f"{case.delays_ms[1]:g}ms", "loss": f"{case.losses_pct[1]:g}%"}
    # 120,000 packets: a loss of 10 % within 0.17 points, 19 times in 20.
    seconds = 3.0 if quick else 12.0
    with path(properties, turn + 1, back=back, tick_ns=TICK_NS) as where, copies.ends_of(where) as ends:
        # Ping and probe are first in turn.
        steps = [
            lambda: {"ping": _ping(where, 200 if quick else 1000)},
            lambda: _probed(ends, where, seconds, 3 if quick else 5),
        ]
        found: dict[str, Any] = {}
        for step in reversed(steps) if turn % 2 else steps:
            found |= step()
        found["iperf3"] = _iperf3(where, seconds)
        status = wan.status(where)
    loss, ping, iperf = found["loss"], found["ping"], found["iperf3"]
    round_trip = found["round_trip"]
    both = 100 * (1 - (1 - case.losses_pct[0] / 100) * (1 - case.losses_pct[1] / 100))
    return found | {
        "loss_error_points": [abs(loss[way]["share_pct"] - loss[way]["counted_pct"]) for way in WAYS],
        "loss_error_configured_points": [
            abs(loss[way]["share_pct"] - pct) for way, pct in zip(WAYS, case.losses_pct, strict=True)
        ],
        "rtt_error_pct": [_off(round_trip["median_ms"], round_trip["on_path_ms"])],
        "rtt_error_configured_pct": [_off(round_trip["median_ms"], case.rtt_ms)],
        # Where the machine was too slow, the probe reports that, and its rate is not the path's.
        "rate_error_pct": [
            None if rate["limit"] == "machine" else _off(rate["achievable_bps"], case.rate_mbit * 1e6)
            for rate in (found["rate"][way] for way in WAYS)
        ],
        "ping_rtt_error_pct": [_off(ping["median_ms"], ping["on_path_ms"])],
        "ping_rtt_error_configured_pct": [_off(ping["median_ms"], case.rtt_ms)],
        "ping_loss_error_points": [abs(ping["loss_pct"] - both)],
        "iperf3_loss_error_points": [abs(iperf["loss_pct"] - case.losses_pct[0])],
        "late_mean_us": {way: status["directions"][w]["lateness"]["mean_us"] for way, w in WAYS.items()},
    }


def _off(found: float, truth: float) -> float:
    return abs(100 * (found / truth - 1))


def _probed(ends: copies.Ends, where: str, seconds: float, part_s: int) -> dict[str, Any]:
    with taps.tapped(where) as seen:
        echoes = _probe(ends, "--only", "rtt", "--duration", str(part_s))
    swept = _probe(ends, "--only", "rate", "--duration", str(part_s), "--max-rate", "400Mbit")
    before = wan.status(where)
    lossy = _probe(ends, "--only", "loss", "--rate", f"{LOSS_BPS / 1e6:g}Mbit", "--duration", f"{seconds:g}")
    after = wan.status(where)
    loss = {}
    for way, name in WAYS.items():
        was, now = before["directions"][name], after["directions"][name]
        counted = (now["lost_random"] - was["lost_random"]) / max(now["in"] - was["in"], 1)
        one = lossy["directions"][way]["loss"]
        loss[way] = {"share_pct": 100 * one["share"], "counted_pct": 100 * counted, "packets": one["sent"]}
    return {
        "loss": loss,
        "round_trip": echoes["round_trip"] | _on_path(seen),
        "rate": {way: swept["directions"][way]["rate"] for way in WAYS},
        "probe_valid": lossy["valid"],
        "wrong_share": wrong_between(before, after),
    }


def _probe(ends: copies.Ends, *more: str) -> dict[str, Any]:
    """A complete `waystage probe` at left; its answer. Raises BenchError."""
    ran = run_left(ends.name, ends.command("probe", f"{RIGHT}:{copies.PORT}", "--json", *more), 300)
    if ran.status not in (0, 7):
        raise BenchError(f"the probe failed: {ran.out.strip()[-300:] or ran.err.strip()[-300:]}")
    return dict(json.loads(ran.out))


def _ping(where: str, count: int) -> dict[str, float]:
    """`ping` from left to right, ten milliseconds apart."""
    words = ["ping", "-n", "-i", "0.01", "-c", str(count), "-s", "64", "-W", "2", RIGHT]
    with taps.tapped(where) as seen:
        ran = run_left(where, words, count * 0.1 + 60)
    times = [float(t) for t in re.findall(r"time=([0-9.]+) ms", ran.out)]
    if not times:
        raise BenchError(f"ping: {(ran.err or ran.out).strip()[-200:]}")
    return {"median_ms": median(times), "loss_pct": 100 * (1 - len(times) / count)} | _on_path(seen)


def _on_path(seen: taps.Taps) -> dict[str, float]:
    """What the path did with the echoes. Raises BenchError."""
    if len(seen.on_path_ms) < LEAST_ECHOES:
        raise BenchError(f"only {len(seen.on_path_ms)} echoes were seen to pass both ends of the path")
    return {"on_path_ms": median(seen.on_path_ms), "on_path_echoes": len(seen.on_path_ms)}


def _iperf3(where: str, seconds: float) -> dict[str, float]:
    carried = peers.iperf3_udp(
        where, seconds, LOSS_BPS * (1 - HEADERS / PACKET_BYTES), PACKET_BYTES - HEADERS
    )
    details = carried.details
    return {"loss_pct": 100 * details["lost"] / max(details["packets"], 1), "packets": details["packets"]}
