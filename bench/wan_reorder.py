"""What reordering costs: a path of 10 ms on which every fourth packet is 5 ms late, against the same path without.

`waystage copy` sends a file from memory to a server in memory over a path of `waystage lab wan`. `fraction` is the
rate of payload with reordering over the rate without, medians, after the first two seconds. The peers are TCP with
each congestion control of this kernel, on the same two paths. The path's rate is that of `bench wan-loss`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import late, link, path, path_rate_bps

from waystage.bench import BenchOptions, Figures, take_turns

TURNS = 5
SETTLE_S, STEADY_S = 2.0, 6.0
RTT_MS = 10
KINDS = {"clean": {}, "reordered": {"reorder": "25%,5ms"}}
TAKES_S = 240, 25


def run(options: BenchOptions) -> dict[str, Any]:
    rate = path_rate_bps()
    steady_s = STEADY_S / 3 if options.quick else STEADY_S
    controls = peers.congestion_controls()
    names = ("waystage", *(controls[:1] if options.quick else controls))
    options.limit.missing += controls[len(names) - 1 :]
    contestants = {
        (name, kind): partial(_one, name, kind, rate, steady_s) for name in names for kind in KINDS
    }
    turns = take_turns(options, contestants, turns=TURNS, invalid=late)
    fraction = {
        name: round(turns.ratio((name, "reordered"), (name, "clean"), "rate_bps"), 3) for name in names
    }
    return {
        "figures": {"fraction": fraction["waystage"]},
        "peers": {name: fraction[name] for name in names[1:]},
        "details": turns.details() | {"rate_bps": rate},
    }


def _one(name: str, kind: str, rate: float, steady_s: float, turn: int) -> Figures:
    with path(link(rate, RTT_MS, **KINDS[kind]), turn + 1) as where:
        if name != "waystage":
            return peers.iperf3(where, steady_s, congestion=name, omit_s=SETTLE_S).figures()
        with copies.ends_of(where) as ends:
            copies.made_file(ends.near / "file", int(rate / 8 * (SETTLE_S + steady_s)))
            done = ends.copy(str(ends.near / "file"), ends.there("file"))
    begin = done.trace.first_s() + SETTLE_S
    arrived = done.trace.rate_bps(begin, max(done.trace.last_s() - 0.05, begin + 1))
    return {"rate_bps": arrived * done.payload_share(), "wrong_share": done.wrong_share}
