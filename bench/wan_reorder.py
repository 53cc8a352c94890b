"""What reordering costs: a path of 10 ms on which every fourth packet is 5 ms later than it would be, against the same path without.

`waystage copy` sends a file from memory to a server in memory over a path of `waystage lab wan`; both kinds of path take turns. `fraction` is the payload's
rate with reordering over that without, medians, after the first two seconds. TCP with each congestion control of this kernel is measured
on the same two paths. The path's rate is that of `bench wan-loss`.
"""

from __future__ import annotations

import uuid
from typing import Any

import _wan_copies as copies
import _wan_peers as peers

from waystage.bench import BenchOptions
from waystage.stats import median

TURNS = 5
SETTLE_S, STEADY_S = 2.0, 6.0
KINDS = {"clean": {}, "reordered": {"reorder": "25%,5ms"}}


def run(options: BenchOptions) -> dict[str, Any]:
    rate = copies.path_rate_bps()
    turns = options.repetitions or (1 if options.quick else TURNS)
    names = ("waystage", *peers.congestion_controls())
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {kind: [] for kind in KINDS} for name in names}
    done, steps = 0, turns * len(names) * len(KINDS)
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            for kind, more in KINDS.items():
                options.progress(f"{name}, {kind}, turn {turn + 1}", done / steps)
                path = {"rate": f"{rate / 1e6:g}Mbit", "delay": "5ms", **more}
                with peers.path(f"b{uuid.uuid4().hex[:8]}", path, turn + 1) as where:
                    runs[name][kind].append(_one(name, where, rate))
                done += 1

    def fraction(name: str) -> float:
        middle = {
            kind: median(
                [one["rate_bps"] for one in rows if one["valid"]] or [one["rate_bps"] for one in rows]
            )
            for kind, rows in runs[name].items()
        }
        return round(middle["reordered"] / middle["clean"], 3)

    return {
        "figures": {"fraction": fraction("waystage")},
        "peers": {name: fraction(name) for name in names[1:]},
        "details": {"rate_bps": rate, "turns": turns, "runs": runs},
    }


def _one(name: str, where: str, rate: float) -> dict[str, Any]:
    if name != "waystage":
        carried = peers.iperf3(where, STEADY_S, congestion=name, omit_s=round(SETTLE_S))
        return {"rate_bps": carried.rate_bps, "valid": carried.valid, "idle_pct": carried.idle_pct}
    with copies.ends_of(where) as ends:
        copies.made_file(ends.near / "file", int(rate / 8 * (SETTLE_S + STEADY_S)))
        done = ends.copy(str(ends.near / "file"), ends.there("file"))
    begin = done.trace.first_s() + SETTLE_S
    return {
        "rate_bps": done.trace.rate_bps(begin, max(done.trace.last_s() - 0.05, begin + 1))
        * done.payload_share(),
        "valid": done.valid,
        "idle_pct": done.idle_pct,
    }
