"""How a path is shared: `fair` beside TCP's CUBIC, sixteen copies beside each other, `modest` beside CUBIC and alone.

Paths of `waystage lab wan`: 100 Mbit/s, 20 ms, buffers of 0.05, 0.25, 1 and 4 bandwidth-delay products. `waystage copy` and
one CUBIC flow of this kernel (iperf3) send the same way, either beginning 5 s after the other; the seconds from 15 to
45 count. `worst_share_pct` is the lowest share of `fair` from 0.25 products on, `best_share_pct` the highest: the bar is
35 to 65 for both. `shallow_worst_share_pct` and `shallow_best_share_pct` are those at 0.05: 35 to 80.
`jain_16` is Jain's index of sixteen copies that begin half a second apart, by packets delivered in 20 s;
`modest_cost_pct` what a CUBIC flow loses beside a copy that was there before it, and `modest_fill_pct` what `modest`
fills alone, payload over the path's rate, the worse of 1 and 4 products. The peer is a second CUBIC flow in the place
of `fair`: its share is what a flow can expect that comes second. A buffer of 0.05 products is eight packets here,
which one burst of this kernel's TCP fills.

A quick run has one case of each kind and counts fewer seconds. A run that ends early has the cases that come first, and names
the others; `fair` that comes second and the peer are one case.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import ended, late, link, path, traced, wrong_share

from waystage.bench import BenchError, BenchOptions, Figures, take_turns

RATE_BPS = 100e6
RTT_MS = 20
SHALLOW = "0.05 BDP"
BUFFERS = ("1 BDP", SHALLOW, "0.25 BDP", "4 BDP")
"""In the order in which they are measured."""

MODEST_BUFFERS = ("1 BDP", "4 BDP")
FLOWS, APART_S = 16, 0.5
TURNS = 5
WIRE_PER_PAYLOAD = 1500 / 1448
"""TCP with time stamps."""

JAIN = f"{FLOWS} copies"
FIRST = ("1 BDP, CUBIC first", "1 BDP, fair first", JAIN, f"{SHALLOW}, fair first")
"""What a run that ends early has within the usual limit: one of each kind, but of `modest`, which takes longer."""

TAKES_S = 4500, 65
LEAST_S = 110, 50


@dataclass(frozen=True)
class Seconds:
    """When the second flow begins, and what counts; when 16 copies count, and for how long; `modest` alone."""

    later: float = 5.0
    begin: float = 15.0
    end: float = 45.0
    flows_begin: float = 15.0
    flows: float = 20.0
    alone: float = 20.0


QUICK = Seconds(later=2, begin=5, end=10, flows_begin=4, flows=5, alone=8)


def run(options: BenchOptions) -> dict[str, Any]:
    when = QUICK if options.quick else Seconds()
    shares: dict[str, partial[Figures]] = {}
    cubics: dict[str, partial[Figures]] = {}
    case: dict[str, str] = {}
    for buffer in BUFFERS:
        second, first = f"{buffer}, CUBIC first", f"{buffer}, fair first"
        shares[second] = partial(_share, when, buffer, False, "fair")
        shares[first] = partial(_share, when, buffer, True, "fair")
        peer = f"{buffer}, CUBIC that came second beside CUBIC"
        cubics[peer] = partial(_cubics, when, buffer)
        case[peer] = second
    modest = {f"modest, {buffer}": partial(_modest, when, buffer) for buffer in MODEST_BUFFERS}
    contestants = {**shares, **cubics, JAIN: partial(_jain, when), **modest}
    contestants = {name: contestants[name] for name in (*FIRST, *contestants)}
    turns = take_turns(
        options,
        contestants,
        turns=TURNS,
        invalid=late,
        case=lambda name: case.get(name, name),
        quick_cases=("1 BDP, fair first", JAIN, f"modest, {MODEST_BUFFERS[0]}"),
    )
    share = turns.medians("share_pct")
    ours = {name: share[name] for name in shares if name in share}
    shallow = [value for name, value in ours.items() if name.startswith(SHALLOW)]
    others = [value for name, value in ours.items() if not name.startswith(SHALLOW)]
    return {
        "figures": options.limit.known(
            {
                "worst_share_pct": lambda: round(min(others), 1),
                "best_share_pct": lambda: round(max(others), 1),
                "shallow_worst_share_pct": lambda: round(min(shallow), 1),
                "shallow_best_share_pct": lambda: round(max(shallow), 1),
                "jain_16": lambda: round(turns.median(JAIN, "jain"), 4),
                "modest_cost_pct": lambda: round(max(turns.medians("cost_pct").values()), 1),
                "modest_fill_pct": lambda: round(min(turns.medians("fill_pct").values()), 1),
            }
        ),
        "peers": {f"{name}: share_pct": round(share[name], 1) for name in cubics if name in share},
        "details": turns.details()
        | {"rate_bps": RATE_BPS, "share_pct": {name: round(value, 1) for name, value in ours.items()}},
    }


def _path(buffer: str, turn: int) -> AbstractContextManager[str]:
    return path(link(RATE_BPS, RTT_MS, buffer=buffer), turn + 1)


def _share(when: Seconds, buffer: str, ours_first: bool, mode: str, turn: int) -> Figures:
    with _path(buffer, turn) as where, copies.ends_of(where) as ends:
        copies.made_file(ends.near / "file", int(RATE_BPS / 8 * (when.end + 5)))
        with traced(where) as trace:
            if ours_first:
                process = ends.begin(str(ends.near / "file"), ends.there("file"), mode=mode)
                time.sleep(when.later)
                omitted = when.begin - when.later
                carried = peers.iperf3(where, when.end - when.begin, omit_s=omitted)
            else:
                started: list[Any] = []

                def later() -> None:
                    time.sleep(when.later)
                    started.append(ends.begin(str(ends.near / "file"), ends.there("file"), mode=mode))

                thread = threading.Thread(target=later)
                thread.start()
                carried = peers.iperf3(where, when.end - when.begin, omit_s=when.begin)
                thread.join()
                process = started[0]
        ended(process)
    theirs = carried.rate_bps * WIRE_PER_PAYLOAD
    whole = trace.rate_bps(when.begin, when.end)
    return {**carried.figures(), "share_pct": 100 * (1 - theirs / whole), "whole_bps": whole}


def _cubics(when: Seconds, buffer: str, turn: int) -> Figures:
    """What a CUBIC flow gets that comes second to another one."""
    carried: list[peers.Carried] = []
    with _path(buffer, turn) as where:

        def first() -> None:
            carried.append(peers.iperf3(where, when.end - when.begin, omit_s=when.begin))

        thread = threading.Thread(target=first)
        thread.start()
        time.sleep(when.later)
        second = peers.iperf3(
            where, when.end - when.begin, omit_s=when.begin - when.later, port=peers.IPERF_PORT + 1
        )
        thread.join()
    if not carried:
        raise BenchError("the first flow failed: run iperf3 by itself to see why")
    whole = carried[0].rate_bps + second.rate_bps
    return {**second.figures(), "share_pct": 100 * second.rate_bps / whole, "whole_bps": whole}


def _jain(when: Seconds, turn: int) -> Figures:
    with _path("1 BDP", turn) as where, copies.ends_of(where) as ends:
        processes = []
        lines = [ends.folder / f"lines-{number}" for number in range(FLOWS)]
        source = copies.made_file(
            ends.near / "file", int(RATE_BPS / 8 * (when.flows_begin + when.flows + 10))
        )
        try:
            for number, file in enumerate(lines):
                more = ("--statistics", str(file))
                processes.append(ends.begin(str(source), ends.there(f"file-{number}"), more=more))
                time.sleep(APART_S)
            time.sleep(when.flows_begin + when.flows)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.communicate()
        end = min(_lines(file)[-1]["time"] for file in lines)
        rates = [_delivered(file, end - when.flows, end) for file in lines]
        wrong = wrong_share(where)
    jain = sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))
    return {"jain": jain, "packets": rates, "wrong_share": wrong}


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _delivered(file: Path, begin: float, end: float) -> float:
    """Packets delivered between two times, by the sender's count each second."""
    within = [line for line in _lines(file) if begin <= line["time"] <= end + 0.5]
    counted = [line for line in within if "sent_packets" in line["connection"]]
    first, last = counted[0], counted[-1]
    count = [
        line["connection"]["sent_packets"] - line["connection"]["lost_packets"] for line in (first, last)
    ]
    return float((count[1] - count[0]) / max(last["time"] - first["time"], 1e-3))


def _modest(when: Seconds, buffer: str, turn: int) -> Figures:
    with _path(buffer, turn) as where:
        alone = peers.iperf3(where, when.end - when.begin, omit_s=when.begin - when.later)
    beside = _share(when, buffer, True, "modest", turn)
    theirs = (1 - beside["share_pct"] / 100) * beside["whole_bps"] / WIRE_PER_PAYLOAD
    with _path(buffer, turn) as where, copies.ends_of(where) as ends:
        copies.made_file(ends.near / "file", int(RATE_BPS / 8 * when.alone))
        done = ends.copy(str(ends.near / "file"), ends.there("file"), mode="modest")
    begin = done.trace.first_s() + 5
    filled = done.trace.rate_bps(begin, done.trace.last_s() - 0.1) * done.payload_share() / RATE_BPS
    return {
        "cost_pct": 100 * (1 - theirs / alone.rate_bps),
        "fill_pct": 100 * filled,
        "wrong_share": max(alone.figures()["wrong_share"], beside["wrong_share"], done.wrong_share),
    }
