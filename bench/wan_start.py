"""How soon a copy has found the rate of a path of 500 ms.

`waystage copy` sends a file over a path of `waystage lab wan` without loss, in the modes `fair` and `fast-start`. What arrives is counted at the path's far end
every 50 ms. The time runs from the moment the first data left until a quarter of a second begins in which 90 % of the path's rate arrive, both as the sender's
end sees it: half a round trip before the data is at the far end. The peers are TCP with CUBIC and BBR, from memory (iperf3). The path's rate is that of
`bench wan-loss`.
"""

from __future__ import annotations

import uuid
from typing import Any

import _wan_copies as copies
import _wan_peers as peers

from waystage.bench import BenchOptions
from waystage.stats import median

TURNS = 5
RTT_MS = 500
SHARE, WINDOW_S = 0.9, 0.25
SECONDS = 10.0
NEVER_S = 60.0
"""Said where the rate was not reached while data was sent."""

MODES = ("fair", "fast-start")


def run(options: BenchOptions) -> dict[str, Any]:
    rate = copies.path_rate_bps()
    turns = options.repetitions or (1 if options.quick else TURNS)
    names = (*MODES, *peers.congestion_controls())
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    done = 0
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            options.progress(f"{name}, turn {turn + 1}", done / (turns * len(names)))
            path = {"rate": f"{rate / 1e6:g}Mbit", "delay": f"{RTT_MS / 2:g}ms", "buffer": "1 BDP"}
            with peers.path(f"b{uuid.uuid4().hex[:8]}", path, turn + 1) as where:
                runs[name].append(_ours(name, where, rate) if name in MODES else _tcp(name, where, rate))
            done += 1

    def seconds(name: str) -> float:
        return round(median([one["seconds"] for one in runs[name] if one["valid"]] or [one["seconds"] for one in runs[name]]), 2)  # fmt: skip

    return {
        "figures": {"fair_s": seconds("fair"), "fast_start_s": seconds("fast-start")},
        "peers": {name: seconds(name) for name in names if name not in MODES},
        "details": {"rate_bps": rate, "rtt_ms": RTT_MS, "turns": turns, "never_s": NEVER_S, "runs": runs},
    }


def _reached(trace: copies.Trace, rate: float) -> float:
    """Seconds from the first data's leaving until the rate is there."""
    first = trace.first_s()
    last = trace.points[-1][0]
    at = first
    while at + WINDOW_S < last:
        if trace.rate_bps(at, at + WINDOW_S) >= SHARE * rate:
            return round(at - first + RTT_MS / 2e3, 3)
        at += copies.SAMPLE_S
    return NEVER_S


def _ours(mode: str, where: str, rate: float) -> dict[str, Any]:
    with copies.ends_of(where) as ends:
        copies.made_file(ends.near / "file", int(rate / 8 * SECONDS))
        done = ends.copy(str(ends.near / "file"), ends.there("file"), mode=mode)
    return {"seconds": _reached(done.trace, rate), "valid": done.valid, "idle_pct": done.idle_pct, "notes": done.value["notes"]}  # fmt: skip


def _tcp(control: str, where: str, rate: float) -> dict[str, Any]:
    with copies.traced(where) as trace:
        carried = peers.iperf3(where, SECONDS, congestion=control)
    return {"seconds": _reached(trace, rate), "valid": carried.valid, "idle_pct": carried.idle_pct}
