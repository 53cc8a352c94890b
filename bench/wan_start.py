"""How soon a copy reaches the rate of a path of 500 ms.

`waystage copy` sends a file over a path of `waystage lab wan` without loss, in the modes `fair` and `fast-start`.
What arrives is counted at the path's far end every 50 ms. The time runs from the first data's departure until the
beginning of a quarter of a second in which 90 % of the path's rate arrive, both as seen by the sender: half a round
trip before the data is at the far end. The peers are TCP with CUBIC and BBR, from memory (iperf3). The path's rate is
that of `bench wan-loss`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import SAMPLE_S, Trace, late, link, path, path_rate_bps, traced

from waystage.bench import BenchOptions, Figures, take_turns

TURNS = 5
RTT_MS = 500
SHARE, WINDOW_S = 0.9, 0.25
SECONDS = 10.0
NEVER_S = 60.0
"""Stands for a rate that was not reached while data was sent."""

MODES = ("fair", "fast-start")
TAKES_S = 320, 40
LEAST_S = 65, 40


def run(options: BenchOptions) -> dict[str, Any]:
    rate = path_rate_bps()
    every = peers.congestion_controls()
    controls = every[-1:] if options.quick else every
    options.limit.missing += every[: -len(controls)]
    data_s = SECONDS / 2 if options.quick else SECONDS
    ours = {mode: partial(_ours, mode, rate, data_s) for mode in MODES}
    turns = take_turns(
        options,
        ours | {name: partial(_tcp, name, rate, data_s) for name in controls},
        turns=TURNS,
        invalid=late,
    )
    seconds = {name: round(value, 2) for name, value in turns.medians("seconds").items()}
    return {
        "figures": {"fair_s": seconds["fair"], "fast_start_s": seconds["fast-start"]},
        "peers": {name: seconds[name] for name in controls},
        "details": turns.details() | {"rate_bps": rate, "rtt_ms": RTT_MS, "never_s": NEVER_S},
    }


def _reached(trace: Trace, rate: float) -> float:
    """Seconds from the first data's departure until the rate is reached."""
    first = trace.first_s()
    last = trace.points[-1][0]
    at = first
    while at + WINDOW_S < last:
        if trace.rate_bps(at, at + WINDOW_S) >= SHARE * rate:
            return at - first + RTT_MS / 2e3
        at += SAMPLE_S
    return NEVER_S


def _ours(mode: str, rate: float, data_s: float, turn: int) -> Figures:
    with path(link(rate, RTT_MS, buffer="1 BDP"), turn + 1) as where, copies.ends_of(where) as ends:
        copies.made_file(ends.near / "file", int(rate / 8 * data_s))
        done = ends.copy(str(ends.near / "file"), ends.there("file"), mode=mode)
    return {
        "seconds": _reached(done.trace, rate),
        "wrong_share": done.wrong_share,
        "notes": done.value["notes"],
    }


def _tcp(control: str, rate: float, data_s: float, turn: int) -> Figures:
    with path(link(rate, RTT_MS, buffer="1 BDP"), turn + 1) as where, traced(where) as trace:
        carried = peers.iperf3(where, data_s, congestion=control)
    return {**carried.figures(), "seconds": _reached(trace, rate)}
