"""How much of a path that is not uniform a copy fills: bursts of loss, outages, steps of capacity and delay, buffers.

`waystage copy` sends a file from memory to a server in memory over paths of `waystage lab wan`, 200 Mbit/s
($WAYSTAGE_BENCH_WAN_MBITS sets another rate), a buffer of one bandwidth-delay product unless the case says otherwise.
CUBIC and BBR of this kernel (iperf3, with ECN) send over the same paths in the same turns. Each turn has another seed.
A fraction is payload, after the first two seconds, over what the path can carry: C (1 - loss), less the time of outages and of
lower capacity. `worst_x_best_tcp` is the worst case of a copy over the better TCP, `worst_fraction` and
`median_fraction` are over all cases, of medians; `ended` counts copies that ended by themselves, `different` those
whose bytes differ. Bursts are lost in both directions, each with its part.

A run has ten cases; $WAYSTAGE_BENCH_WAN_PATTERNS=all adds bursts of mean 3, 10 and 50 packets at 0.1, 1, 5 and 10 %,
further cases, and UDT (Debian's libudt-dev) as a peer: 20 minutes a turn. `cargo run --release -p waystage-wansim --example paths patterns` has the
same in virtual time.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import statistics
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import TooSlow, Trace, late, link, path, traced, wrong_between

from waystage.bench import BenchError, BenchOptions, Figures, installed, take_turns
from waystage.worlds.lab import wan
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.wan import paths
from waystage.worlds.lab.wan.profile import WAYS, Way

TAKES_S = 280, 20
RATE_BPS = 200e6
SETTLE_S, STEADY_S, CHANGING_S = 2.0, 3.0, 8.0
PERIOD_S = 4.0
LIMIT_S = 15.0
"""A copy or a stream that takes longer is ended by the benchmark: what it moved until then counts."""

PAYLOAD, TCP_PAYLOAD = 1436 / 1500, 1448 / 1500
"""Of the packets of a copy, and of TCP with time stamps."""


@dataclass(frozen=True)
class Case:
    """A path: its round trip, its properties, and what of its rate it can carry.

    `back` differs from right to left. During the last `for_s` of each period of `PERIOD_S` it has the properties
    `then`.
    """

    rtt_ms: int
    carries: float = 1.0
    properties: Mapping[str, str] = field(default_factory=dict)
    back: Mapping[str, str] = field(default_factory=dict)
    then: Mapping[str, str] = field(default_factory=dict)
    for_s: float = 0.0

    @property
    def steady_s(self) -> float:
        return CHANGING_S if self.then else STEADY_S


def bursts(mean: float, share: float, rtt_ms: int = 10) -> Case:
    """Gilbert and Elliott: bursts of geometric length, `mean` packets on average, that are a share of all packets."""
    end = 1 / mean
    begin = end * share / (1 - share)
    return Case(rtt_ms, 1 - share, {"bursts": f"{100 * begin:.6f}%,{100 * end:.4f}%"})


def buffer(bdp: float, rtt_ms: int = 40) -> Case:
    return Case(rtt_ms, properties={"buffer": f"{bdp:g} BDP"})


CASES = {
    "bursts of 10, 1 %": bursts(10, 0.01),
    "bursts of 10, 10 %": bursts(10, 0.1),
    "outages of 500 ms": Case(40, 1 - 0.5 / PERIOD_S, then={"loss": "100%"}, for_s=0.5),
    "a quarter of the capacity, half of the time": Case(
        40, (1 + 0.25) / 2, then={"rate": "quarter"}, for_s=PERIOD_S / 2
    ),
    "delay steps of 20 ms": Case(40, then={"delay": "30ms"}, for_s=PERIOD_S / 2),
    "jitter of 5 ms on a quarter": Case(40, properties={"reorder": "25%,5ms"}),
    "buffer of 0.05 BDP": buffer(0.05),
    "policer of a half, 30 kB": Case(40, 0.5, {"policer": "half,30kB"}),
    "CoDel": Case(40, properties={"aqm": "codel"}),
    "ECN marks": Case(40, properties={"ecn": "0.1 BDP"}),
}
MORE = {
    f"bursts of {mean}, {100 * share:g} %": bursts(mean, share)
    for mean in (3, 10, 50)
    for share in (0.001, 0.01, 0.05, 0.1)
} | {
    "outages of 50 ms": Case(40, 1 - 0.05 / PERIOD_S, then={"loss": "100%"}, for_s=0.05),
    "loss of 10 % of acknowledgements": Case(40, back={"loss": "10%"}),
    "policer of a half, 300 kB": Case(40, 0.5, {"policer": "half,300kB"}),
    "RED": Case(40, properties={"aqm": "red,10%,30%"}),
    "CoDel with ECN": Case(40, properties={"aqm": "codel", "ecn": "aqm"}),
    "buffer of 0.25 BDP": buffer(0.25),
    "buffer of 1 BDP": buffer(1),
    "buffer of 4 BDP": buffer(4),
    "duplicates of 5 %, damage of 1 %": Case(40, 0.99, {"duplicate": "5%", "corrupt": "1%"}),
}
QUICK = ("bursts of 10, 1 %",)


def run(options: BenchOptions) -> dict[str, Any]:
    installed("iperf3")
    rate = float(os.environ.get("WAYSTAGE_BENCH_WAN_MBITS", RATE_BPS / 1e6)) * 1e6
    everything = os.environ.get("WAYSTAGE_BENCH_WAN_PATTERNS") == "all"
    cases = CASES | (MORE if everything else {})
    streams = peers.congestion_controls()
    measures: dict[str, Any] = {"waystage": _ours} | {who: partial(_tcp, who) for who in streams}
    if everything and peers.udt_program() is not None:
        measures["udt"] = _udt
    contestants = {
        (who, name): partial(measure, rate, case)
        for name, case in cases.items()
        for who, measure in measures.items()
    }
    turns = take_turns(
        options, contestants, turns=1, invalid=late, case=lambda name: name[1], quick_cases=QUICK
    )
    rates = turns.medians("rate_bps")
    fractions = {
        (who, name): rates[who, name] / (rate * case.carries)
        for name, case in cases.items()
        for who in measures
        if (who, name) in rates
    }
    ours = {name: fractions["waystage", name] for name in cases if ("waystage", name) in fractions}
    if not ours:
        raise BenchError("no copy was measured")
    over_tcp = {
        name: ours[name] / best
        for name in ours
        if (best := max((fractions.get((who, name), 0.0) for who in streams), default=0.0)) > 0
    }
    rows = [row for name in cases for row in turns.rows(("waystage", name))]
    return {
        "figures": {
            "worst_x_best_tcp": round(min(over_tcp.values(), default=0.0), 3),
            "worst_fraction": round(min(ours.values()), 3),
            "median_fraction": round(statistics.median(ours.values()), 3),
            "ended": sum(int(row.get("ended", 0)) for row in rows),
            "different": sum(int(row.get("different", 0)) for row in rows),
        },
        "peers": {
            f"{who}, {name}": round(fractions[who, name], 3) for who, name in fractions if who != "waystage"
        },
        "details": turns.details()
        | {"rate_bps": rate, "fractions": {name: round(value, 3) for name, value in ours.items()}},
    }


@contextlib.contextmanager
def _path(rate: float, case: Case, turn: int) -> Iterator[str]:
    """The path of a case, which changes while the body runs."""
    half = f"{rate / 2e6:g}Mbit"
    properties = {key: text.replace("half", half) for key, text in case.properties.items()}
    usual = link(rate, case.rtt_ms, **{"buffer": "1 BDP", **properties})
    stop = threading.Event()
    with path(usual, turn + 1, back=case.back) as name:
        thread = threading.Thread(target=_changes, args=(name, rate, case, stop), daemon=True)
        if case.then:
            thread.start()
        try:
            yield name
        finally:
            stop.set()
            if case.then:
                thread.join()


def _changes(name: str, rate: float, case: Case, stop: threading.Event) -> None:
    then = dict(case.then)
    back = {key: {"loss": "0%", "delay": f"{case.rtt_ms / 2:g}ms"}.get(key, "") for key in then}
    # An outage and another way by satellite concern both directions, capacity that of the data.
    ways: tuple[Way, ...] = WAYS
    if "rate" in then:
        then["rate"], back["rate"] = f"{rate / 4e6:g}Mbit", f"{rate / 1e6:g}Mbit"
        ways = ("forward",)
    with contextlib.suppress(LabError):
        while not stop.wait(PERIOD_S - case.for_s):
            wan.change(name, then, ways)
            stop.wait(case.for_s)
            wan.change(name, back, ways)


def _ours(rate: float, case: Case, turn: int) -> Figures:
    with _path(rate, case, turn) as name, copies.ends_of(name) as ends:
        size = int(rate / 8 * case.carries * (SETTLE_S + case.steady_s))
        source = copies.made_file(ends.near / "file", size)
        before = wan.status(name)
        with traced(name) as trace:
            process = ends.begin(str(source), ends.there("file"))
            try:
                _, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return _rate(trace, case, LIMIT_S, PAYLOAD) | {"ended": 0.0, "complete": 0.0}
        if process.returncode != 0:
            return {"rate_bps": 0.0, "ended": 1.0, "why": err.strip()[-300:]}
        wrong = wrong_between(before, wan.status(name))
        same = filecmp.cmp(source, ends.far / "file", shallow=False)
    whole = {"ended": 0.0, "complete": 1.0, "different": float(not same), "wrong_share": wrong}
    return _rate(trace, case, trace.last_s() - 2 * case.rtt_ms / 1e3, PAYLOAD) | whole


def _rate(trace: Trace, case: Case, until_s: float, payload: float) -> dict[str, float]:
    begin = trace.first_s() + SETTLE_S
    end = max(min(begin + case.steady_s, until_s), begin + 1)
    return {"rate_bps": trace.rate_bps(begin, end) * payload}


def _udt(rate: float, case: Case, turn: int) -> Figures:
    with _path(rate, case, turn) as name:
        try:
            return peers.udt(name, case.steady_s, omit_s=SETTLE_S, limit_s=LIMIT_S).figures()
        except TooSlow:
            return {"rate_bps": 0.0, "complete": 0.0}


def _tcp(control: str, rate: float, case: Case, turn: int) -> Figures:
    with _path(rate, case, turn) as name, traced(name) as trace:
        for side in ("left", "right"):
            command = ["sysctl", "-qw", "net.ipv4.tcp_ecn=1"]
            paths.start(name, side, command).wait()
        try:
            stream = peers.iperf3(name, case.steady_s, congestion=control, omit_s=SETTLE_S, limit_s=LIMIT_S)
        except TooSlow:
            return _rate(trace, case, LIMIT_S, TCP_PAYLOAD) | {"complete": 0.0}
        return stream.figures()
