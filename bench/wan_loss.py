"""How much of a long and lossy path a copy fills, against TCP with CUBIC and BBR.

Paths of `waystage lab wan`, 10 ms and 200 ms round trip, random loss of 0 to 10 % in both directions, a buffer of one bandwidth-delay product.
`waystage copy` fetches a file from a server at the other end; iperf3 sends over the same path with each congestion control of this
kernel, and quinn by QUIC. Turns alternate. What counts is payload after the start, as a part of C (1 - loss), C being the path's rate in IP packets.

The path has 1 Gbit/s where the machine has two processors for both ends and for the path itself; else 200 Mbit/s, and `details` says so
($WAYSTAGE_BENCH_WAN_MBITS sets it). A run in which the path was late with more than 0.1 % of packets is counted as not valid and left out,
unless all are; so is one that a QUIC stack gave up, and `details` says why. rsync and rclone are measured without loss and with 1 %, at 10 ms.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers

from waystage.bench import BenchError, BenchOptions
from waystage.stats import median

ROUND_TRIPS_MS = (10, 200)
LOSSES_PCT = (0.0, 0.1, 1.0, 5.0, 10.0)
TREES_MS, TREE_LOSSES_PCT = 10, (0.0, 1.0)
TURNS = 5
STEADY_S = {10: 6.0, 200: 10.0}
SETTLE_S = {10: 2.0, 200: 6.0}
"""After so long from its first packet every mode has found the rate (docs/reference/wide-area-figures.md)."""

TREE_BYTES = 20 << 20

Case = tuple[int, float]


def run(options: BenchOptions) -> dict[str, Any]:
    rate = copies.path_rate_bps()
    turns = options.repetitions or (1 if options.quick else TURNS)
    round_trips = ROUND_TRIPS_MS[:1] if options.quick else ROUND_TRIPS_MS
    losses = (0.0, 10.0) if options.quick else LOSSES_PCT
    controls = peers.congestion_controls()
    if "iperf3" in peers.missing():
        raise BenchError("iperf3 is not installed: apt-get install iperf3")
    streams = [*controls, *(["quic"] if peers.quic_program() else [])]
    runs: dict[str, dict[Case, list[dict[str, Any]]]] = {
        name: {} for name in ("waystage", *streams, *peers.PEERS)
    }
    cases = [(rtt, loss) for rtt in round_trips for loss in losses]
    given_up: list[str] = []
    steps, done = turns * len(cases) * (1 + len(streams)), 0
    for turn in range(turns):
        for rtt, loss in cases:
            for name in ("waystage", *streams) if turn % 2 == 0 else (*reversed(streams), "waystage"):
                what = f"{name}, {rtt} ms, {loss:g} %, turn {turn + 1}"
                options.progress(what, done / steps)
                done += 1
                try:
                    one = (
                        _ours(rate, rtt, loss, turn)
                        if name == "waystage"
                        else _stream(name, rate, rtt, loss, turn)
                    )
                except BenchError as error:
                    if name != "quic":
                        raise
                    given_up.append(f"{what}: {error}")
                else:
                    runs[name].setdefault((rtt, loss), []).append(one)
        for loss in TREE_LOSSES_PCT if (TREES_MS in round_trips and not options.quick) else ():
            for name in [peer for peer in peers.PEERS if peer not in peers.missing()]:
                options.progress(f"{name}, {TREES_MS} ms, {loss:g} %, turn {turn + 1}", done / steps)
                runs[name].setdefault((TREES_MS, loss), []).append(_tree(name, rate, loss, turn))

    def fraction(name: str, case: Case) -> float:
        return _middle(runs[name][case], "rate_bps") / (rate * (1 - case[1] / 100))

    to_5 = [fraction("waystage", case) for case in cases if case[1] <= 5]
    at_10 = [fraction("waystage", case) for case in cases if case[1] == 10]
    best_0 = [
        max(_middle(runs[name][case], "rate_bps") for name in streams if case in runs[name])
        for case in cases
        if case[1] == 0
    ]
    ours_0 = [_middle(runs["waystage"][case], "rate_bps") for case in cases if case[1] == 0]
    lossy = (10, 10.0)
    return {
        "figures": {
            "worst_fraction_to_5pct": round(min(to_5), 3),
            "fraction_10pct": round(min(at_10), 3),
            "x_cubic_10pct": round(
                _middle(runs["waystage"][lossy], "rate_bps") / _middle(runs["cubic"][lossy], "rate_bps"), 1
            ),
            "x_best_0pct": round(min(o / b for o, b in zip(ours_0, best_0, strict=True)), 3),
            "duplicates_pct": round(max(_middle(rows, "duplicates_pct") for rows in runs["waystage"].values()), 4),
        },
        "peers": {
            f"{name}, {rtt} ms, {loss:g} %": round(fraction(name, (rtt, loss)), 4)
            for name in runs
            if name != "waystage"
            for rtt, loss in runs[name]
        },
        "details": {
            "rate_bps": rate,
            "turns": turns,
            "given_up": given_up,
            "not_valid": sum(not one["valid"] for by in runs.values() for rows in by.values() for one in rows),
            "fractions": {f"{rtt} ms, {loss:g} %": round(fraction("waystage", (rtt, loss)), 4) for rtt, loss in cases},
            "runs": {name: {f"{rtt} ms, {loss:g} %": rows for (rtt, loss), rows in by.items()} for name, by in runs.items()},
        },
    }  # fmt: skip


def _middle(rows: list[dict[str, Any]], key: str) -> float:
    valid = [one for one in rows if one["valid"]] or rows
    return median([float(one[key]) for one in valid])


def properties(rate: float, rtt_ms: int, loss_pct: float) -> dict[str, str]:
    """A path as `lab wan` takes it."""
    return {
        "rate": f"{rate / 1e6:g}Mbit",
        "delay": f"{rtt_ms / 2:g}ms",
        "loss": f"{loss_pct:g}%",
        "buffer": "1 BDP",
    }


def _ours(rate: float, rtt: int, loss: float, seed: int) -> dict[str, Any]:
    with peers.path(f"b{uuid.uuid4().hex[:8]}", properties(rate, rtt, loss), seed + 1) as name:
        with copies.ends_of(name) as ends:
            size = int(rate / 8 * (SETTLE_S[rtt] + STEADY_S[rtt]) * (1 - loss / 100))
            copies.made_file(ends.far / "file", size)
            # Fetched, because who receives knows what came twice.
            done = ends.copy(ends.there("file"), str(ends.near / "file"), way="back")
            if (ends.near / "file").stat().st_size != size:
                raise BenchError("the copy is not whole")
    begin = done.trace.first_s() + SETTLE_S[rtt]
    end = max(done.trace.last_s() - 2 * rtt / 1e3, begin + 1)
    connection = done.value["connection"]
    return {
        "rate_bps": done.trace.rate_bps(begin, end) * done.payload_share(),
        "whole_bps": 8 * done.payload_bytes / done.seconds,
        "duplicates_pct": 100 * connection["duplicate_bytes"] / done.payload_bytes,
        "valid": done.valid,
        "idle_pct": done.idle_pct,
    }


def _stream(peer: str, rate: float, rtt: int, loss: float, seed: int) -> dict[str, Any]:
    with peers.path(f"b{uuid.uuid4().hex[:8]}", properties(rate, rtt, loss), seed + 1) as name:
        if peer == "quic":
            carried = peers.quic(name, STEADY_S[rtt], omit_s=SETTLE_S[rtt])
        else:
            carried = peers.iperf3(name, STEADY_S[rtt], congestion=peer, omit_s=round(SETTLE_S[rtt]))
    return {"rate_bps": carried.rate_bps, "valid": carried.valid, "idle_pct": carried.idle_pct}


def _tree(peer: str, rate: float, loss: float, seed: int) -> dict[str, Any]:
    with peers.path(f"b{uuid.uuid4().hex[:8]}", properties(rate, TREES_MS, loss), seed + 1) as name:
        with copies.ends_of(name) as ends:
            copies.made_file(ends.near / "file", TREE_BYTES if loss else 4 * TREE_BYTES)
            carried = peers.PEERS[peer](name, Path(ends.near), Path(ends.far))
    return {"rate_bps": carried.rate_bps, "valid": carried.valid, "idle_pct": carried.idle_pct}
