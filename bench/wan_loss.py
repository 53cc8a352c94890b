"""How much of a long and lossy path a copy fills, against TCP with CUBIC and BBR, and QUIC.

Paths of `waystage lab wan`, 10 ms and 200 ms round trip, random loss of 0 to 20 % in both directions, a buffer of one
bandwidth-delay product. `waystage copy` fetches a file from a server at the far end; iperf3 sends over the same path
with each congestion control of this kernel, and quinn by QUIC. A fraction is payload after the start over C (1 -
loss), C being the path's rate in IP packets.

The path has 1 Gbit/s where the machine has two CPUs for both ends and the path itself; else 200 Mbit/s, and `details`
says so ($WAYSTAGE_BENCH_WAN_MBITS sets it). A path is a case: a run that ends early has those that come first, and
names the others; a figure over several paths is then over those. A measurement does not count where the path was late
with more than 0.1 % of packets, or where a QUIC stack gave up. rsync and rclone are measured without loss and with 1 %,
at 10 ms.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import late, link, path, path_rate_bps

from waystage.bench import BenchError, BenchOptions, Figures, TurnFailed, installed, take_turns

ROUND_TRIPS_MS = (10, 200)
LOSSES_PCT = (10.0, 0.0, 20.0, 5.0, 1.0, 0.1)
"""In the order in which they are measured: each figure has a path among the first."""

TREES_MS, TREE_LOSSES_PCT = 10, (0.0, 1.0)
TURNS = 5
STEADY_S = {10: 6.0, 200: 10.0}
SETTLE_S = {10: 2.0, 200: 6.0}
"""This long after its first packet every mode has found the rate (docs/reference/wide-area-figures.md)."""

TREE_BYTES = 20 << 20
TAKES_S = 2800, 25
LEAST_S = 60, 25


def run(options: BenchOptions) -> dict[str, Any]:
    installed("iperf3")
    rate = path_rate_bps()
    steady_s = {rtt: seconds / 3 if options.quick else seconds for rtt, seconds in STEADY_S.items()}
    cases = [(rtt, loss) for loss in LOSSES_PCT for rtt in ROUND_TRIPS_MS]
    streams = [*peers.congestion_controls(), *(["quic"] if peers.quic_program() else [])]
    contestants = {
        (name, case(rtt, loss)): partial(
            _ours if name == "waystage" else partial(_stream, name), rate, rtt, loss, steady_s[rtt]
        )
        for rtt, loss in cases
        for name in ("waystage", *streams)
    }
    if not options.quick:
        contestants |= {
            (name, case(TREES_MS, loss)): partial(_tree, name, rate, loss)
            for loss in TREE_LOSSES_PCT
            for name in peers.tree_peers()
        }
    turns = take_turns(
        options,
        contestants,
        turns=TURNS,
        invalid=late,
        case=lambda name: name[1],
        quick_cases=[case(ROUND_TRIPS_MS[0], LOSSES_PCT[0])],
    )
    rates = turns.medians("rate_bps")
    capacity = {case(rtt, loss): rate * (1 - loss / 100) for rtt, loss in cases}
    fractions = {pair: rates[pair] / capacity[pair[1]] for pair in contestants if pair in rates}
    ours = {one: fractions["waystage", at] for one in cases if ("waystage", at := case(*one)) in fractions}
    lossy = case(10, 10.0)

    def worst(least_pct: float, most_pct: float) -> float:
        return round(min(value for (_, loss), value in ours.items() if least_pct <= loss <= most_pct), 3)

    def times_best(at: str) -> float:
        return rates["waystage", at] / max(rates[s, at] for s in streams if (s, at) in rates)

    return {
        "figures": options.limit.known(
            {
                "worst_fraction_to_5pct": lambda: worst(0, 5),
                "fraction_10pct": lambda: worst(10, 10),
                "fraction_20pct": lambda: worst(20, 20),
                "x_cubic_10pct": lambda: round(rates["waystage", lossy] / rates["cubic", lossy], 1),
                "x_best_0pct": lambda: round(min(times_best(case(*one)) for one in ours if one[1] == 0), 3),
                "duplicates_pct": lambda: round(max(turns.medians("duplicates_pct").values()), 4),
            }
        ),
        "peers": {
            f"{name}, {at}": round(value, 4) for (name, at), value in fractions.items() if name != "waystage"
        },
        "details": turns.details()
        | {"rate_bps": rate, "fractions": {case(*one): round(value, 4) for one, value in ours.items()}},
    }


def case(rtt_ms: int, loss_pct: float) -> str:
    return f"{rtt_ms} ms, {loss_pct:g} %"


def properties(rate: float, rtt_ms: int, loss_pct: float) -> dict[str, str]:
    """A path as `lab wan` takes it."""
    return link(rate, rtt_ms, loss=f"{loss_pct:g}%", buffer="1 BDP")


def _ours(rate: float, rtt: int, loss: float, steady_s: float, turn: int) -> Figures:
    with path(properties(rate, rtt, loss), turn + 1) as name, copies.ends_of(name) as ends:
        size = int(rate / 8 * (SETTLE_S[rtt] + steady_s) * (1 - loss / 100))
        copies.made_file(ends.far / "file", size)
        # Fetched, because the receiver knows what came twice.
        done = ends.copy(ends.there("file"), str(ends.near / "file"), way="back")
        if (ends.near / "file").stat().st_size != size:
            raise BenchError("the copy is incomplete")
    begin = done.trace.first_s() + SETTLE_S[rtt]
    end = max(done.trace.last_s() - 2 * rtt / 1e3, begin + 1)
    return {
        "rate_bps": done.trace.rate_bps(begin, end) * done.payload_share(),
        "whole_bps": 8 * done.payload_bytes / done.seconds,
        "duplicates_pct": 100 * done.value["connection"]["duplicate_bytes"] / done.payload_bytes,
        "wrong_share": done.wrong_share,
    }


def _stream(peer: str, rate: float, rtt: int, loss: float, steady_s: float, turn: int) -> Figures:
    with path(properties(rate, rtt, loss), turn + 1) as name:
        if peer != "quic":
            return peers.iperf3(name, steady_s, congestion=peer, omit_s=SETTLE_S[rtt]).figures()
        try:
            return peers.quic(name, steady_s, omit_s=SETTLE_S[rtt]).figures()
        except BenchError as error:
            raise TurnFailed(str(error)) from error


def _tree(peer: str, rate: float, loss: float, turn: int) -> Figures:
    with path(properties(rate, TREES_MS, loss), turn + 1) as name, copies.ends_of(name) as ends:
        copies.made_file(ends.near / "file", TREE_BYTES if loss else 4 * TREE_BYTES)
        return peers.PEERS[peer](name, Path(ends.near), Path(ends.far)).figures()
