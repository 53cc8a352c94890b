"""The simulator at 10,240 hosts and a million flows, and a day of 10,000 jobs: seconds, memory, and how both grow.

Load mode routes a million flows by D-mod-K and adds up the links (`_load_scale.py`). Time mode plays flows to the
last byte at max-min fair rates. Two workloads: 80 jobs of 128 ranks, each an all-to-all of a different size (1.3 million
flows, exact), and a million flows between random hosts with exponentially distributed sizes, all at once, the hardest
case: nothing ends together, and everything shares with everything. The latter is played to a precision of 1 %; what
that does to the answer is measured against exact runs of a size where these are feasible (`details.rough_error`).
`time_s` is the slower of the two. Each run is a separate process; `peak_gib` is the largest of all.

`day_s` is a day of 10,000 jobs of 4 to 256 nodes on 1,024 hosts under a policy that paces flows, by `waystage run`
(`_day.yaml`, `_day.py`).

`load_100k_s` is load mode with ten times as many of both. `--repetitions 10` plays ten times as many in time mode too,
which adds `time_100k_s` and `peak_100k_gib`; that run takes ten minutes or more and has no time limit.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import numpy as np
from _day import JOBS, JOBS_QUICK, day_part
from _load_scale import SHAPES, load_part
from numpy.typing import NDArray

from waystage._native import FlowClock, FlowProgram, Network
from waystage.bench import BenchError, BenchOptions, measure_apart
from waystage.machine import peak_gib
from waystage.native_options.routes import RouteOptions

LINK_BYTES_PER_S = 12.5e9
"""100 Gbit/s; only the simulated times depend on it."""

RANKS = 128
ROUGH = 1e-2
EXACT = 1e-9
MEAN_BYTES = 1e8
LARGE = 10
"""Repetitions from which on the large case is played."""

LARGE_HOSTS, LARGE_FLOWS = 102_400, 10_000_000
TAKES_S = 260, 35


def run(options: BenchOptions) -> dict[str, Any]:
    """The full size, and smaller ones for the curve; quick: a tenth of the hosts and flows, 200 jobs of the day."""
    plan = [("all-to-all", 1_024, 0, EXACT), ("random", 1_024, 100_000, ROUGH)]
    if not options.quick:
        plan = [
            ("random", 512, 10_000, EXACT),
            ("random", 512, 10_000, ROUGH),
            ("random", 1_024, 10_000, ROUGH),
            *plan,
            ("random", 10_240, 100_000, ROUGH),
            ("all-to-all", 10_240, 0, EXACT),
            ("random", 10_240, 1_000_000, ROUGH),
        ]
    large = (options.repetitions or 1) >= LARGE and not options.quick
    options.progress("load mode", 0.0)
    load = measure_apart(__file__, "load", int(options.quick))
    curve = []
    for i, (mode, hosts, flows, precision) in enumerate(plan):
        options.progress(f"time mode, {mode}, {hosts:,} hosts", (i + 1) / (len(plan) + 1))
        curve.append(measure_apart(__file__, mode, hosts, flows, precision))
    options.progress("a day of jobs", len(plan) / (len(plan) + 1))
    day = measure_apart(__file__, "day", JOBS_QUICK if options.quick else JOBS)
    figures: dict[str, float] = {
        "load_s": load["seconds"],
        "time_s": max(entry["seconds"] for entry in curve[-2:]),
        "peak_gib": max(entry["peak_gib"] for entry in [load, *curve, day]),
        "day_s": day["seconds"],
    }
    if not options.quick:
        largest = next(row for row in load["details"]["curve"] if row["hosts"] == LARGE_HOSTS)
        figures["load_100k_s"] = round(largest["total_s"], 3)
    if large:
        options.progress(f"time mode, random, {LARGE_HOSTS:,} hosts", len(plan) / (len(plan) + 1))
        curve.append(measure_apart(__file__, "random", LARGE_HOSTS, LARGE_FLOWS, ROUGH))
        figures["time_100k_s"] = curve[-1]["seconds"]
        figures["peak_100k_gib"] = curve[-1]["peak_gib"]
    details = {"load": load["details"], "day": day, "time_curve": [_shown(entry) for entry in curve]}
    if not options.quick:
        details["rough_error"] = _difference(curve[0]["ends"], curve[1]["ends"])
    return {"figures": figures, "details": details}


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "ends"}


def _difference(exact: list[float], rough: list[float]) -> dict[str, float]:
    """Of the ending times of single flows, relative."""
    error = np.abs(np.array(rough) / np.array(exact) - 1)
    return {"mean": float(error.mean()), "p99": float(np.quantile(error, 0.99)), "max": float(error.max())}


def _load(quick: bool) -> dict[str, Any]:
    seconds, details = load_part(BenchOptions(quick=quick))
    return {"seconds": seconds, "details": details, "peak_gib": peak_gib()}


@dataclasses.dataclass(frozen=True)
class _Flows:
    """Pairs of hosts with bytes; `runs` groups the flows into programs: those of a job, or each alone."""

    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    bytes: NDArray[np.float64]
    runs: list[slice]


def _random(hosts: int, flows: int) -> _Flows:
    random = np.random.default_rng(1)
    src = random.integers(0, hosts, flows).astype(np.uint32)
    dst = ((src + random.integers(1, hosts, flows)) % hosts).astype(np.uint32)
    return _Flows(src, dst, random.exponential(MEAN_BYTES, flows), [slice(i, i + 1) for i in range(flows)])


def _all_to_all(hosts: int) -> _Flows:
    one, other = (a.ravel() for a in np.meshgrid(np.arange(RANKS), np.arange(RANKS), indexing="ij"))
    one, other = one[one != other], other[one != other]
    jobs = hosts // RANKS
    base = (np.arange(jobs) * RANKS)[:, None]
    each = MEAN_BYTES * (1 + np.random.default_rng(1).random(jobs)) / RANKS
    return _Flows(
        (base + one).ravel().astype(np.uint32),
        (base + other).ravel().astype(np.uint32),
        np.repeat(each, one.size),
        [slice(j * one.size, (j + 1) * one.size) for j in range(jobs)],
    )


def _time(mode: str, hosts: int, count: int, precision: float) -> dict[str, Any]:
    children, parents = SHAPES[hosts]
    network = Network.xgft(children, parents, LINK_BYTES_PER_S, LINK_BYTES_PER_S)
    flows = _all_to_all(hosts) if mode == "all-to-all" else _random(hosts, count)
    begin = time.perf_counter()
    # Random pairs under a hash spread over all links, and more rates hang together than under D-mod-K.
    router = "d-mod-k" if mode == "all-to-all" else "ecmp-hash"
    routes = network.route_loads(
        router, flows.src, flows.dst, flows.bytes, RouteOptions(per_flow=True, keep_paths=True)
    )
    routed = time.perf_counter()
    clock = FlowClock(network.capacity, precision=precision)
    clock.add_routes(routes.offsets, routes.links)
    keys = np.arange(flows.src.size, dtype=np.uint32)
    for run_of in flows.runs:
        program = FlowProgram()
        program.step()
        program.flows(keys[run_of], flows.bytes[run_of])
        clock.start(program)
    ends = np.zeros(len(flows.runs))
    while ended := clock.run_until():
        for at, which in ended:
            ends[which] = at
    seconds = time.perf_counter() - routed
    # A figure that nothing was computed for is none: every byte has left its host.
    sent = clock.totals()[network.links_from < hosts].sum()
    if not np.isclose(sent, flows.bytes.sum(), rtol=1e-9) or not ends.all():
        raise BenchError(f"hosts sent {sent} bytes where flows have {flows.bytes.sum()}")
    return {
        "mode": mode,
        "router": router,
        "hosts": hosts,
        "links": int(network.capacity.size),
        "flows": int(flows.src.size),
        "precision": precision,
        "routing_s": round(routed - begin, 3),
        "seconds": round(seconds, 3),
        "us_per_flow": round(seconds / flows.src.size * 1e6, 2),
        "solutions": clock.solutions,
        "simulated_s": clock.now,
        "peak_gib": peak_gib(),
        "ends": ends.tolist() if flows.src.size <= 10_000 else [],
    }


def _main(arguments: list[str]) -> dict[str, Any]:
    if arguments[0] == "load":
        return _load(arguments[1] == "1")
    if arguments[0] == "day":
        return day_part(int(arguments[1]))
    mode, hosts, count, precision = arguments
    return _time(mode, int(hosts), int(count), float(precision))


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1:])))
