"""Max-min fair rates and ending times against SimGrid on random cases.

Both sides get the same links and flows. SimGrid's options disable everything but max-min sharing: model CM02
instead of LV08 (no correction factors for bandwidth and latency), no cross traffic (acknowledgements take no share of
the way back), no TCP window limit (`TCP-gamma` 0), latency 0, no weight of round-trip time (`weight-S` 0: with it a
flow over many slow links would get less), and a solver precision of 1e-9. `max_rel_error` is the largest relative
error of any flow's rate or ending time in any case: 0.01 is 1 %.

Needs Debian's libsimgrid-dev and g++.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage._native import FlowClock, FlowProgram
from waystage.bench import BenchError, BenchOptions, installed, run_program

SOURCE = Path(__file__).parent / "simgrid_peer" / "rates.cpp"
CASES = 40
QUICK_CASES = 6

PURE_MAX_MIN = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/optim:Full",
    "maxmin/precision:1e-9",
    "surf/precision:1e-9",
)
TAKES_S = 30, 10


@dataclass(frozen=True)
class Case:
    """Links in bytes/s; flows with bytes, a limit (0 for none) and links."""

    capacities: NDArray[np.float64]
    bytes: NDArray[np.float64]
    limits: NDArray[np.float64]
    routes: list[NDArray[np.uint32]]


def run(options: BenchOptions) -> dict[str, Any]:
    """Compare `options.repetitions` cases. Raises BenchError where SimGrid is not installed."""
    cases = options.repetitions or (QUICK_CASES if options.quick else CASES)
    worst = {"rate": 0.0, "end": 0.0}
    ours_s = peer_s = 0.0
    flows = 0
    with tempfile.TemporaryDirectory(prefix="waystage-simgrid-") as folder:
        binary = build(Path(folder))
        for i in range(cases):
            options.progress(f"case {i + 1} of {cases}", i / cases)
            case = random_case(i)
            flows += len(case.routes)
            began = time.perf_counter()
            sample_s, rates, ends = ours(case)
            sent = time.perf_counter()
            their_rates, their_ends = theirs(binary, case, sample_s, Path(folder))
            ours_s += sent - began
            peer_s += time.perf_counter() - sent
            worst["rate"] = max(worst["rate"], float(np.max(np.abs(rates / their_rates - 1))))
            worst["end"] = max(worst["end"], float(np.max(np.abs(ends / their_ends - 1))))
    return {
        "figures": {"max_rel_error": max(worst.values())},
        "peers": {"simgrid": version(), "simgrid_s": round(peer_s, 3)},
        "details": {
            "cases": cases,
            "flows": flows,
            "max_rate_error": worst["rate"],
            "max_end_error": worst["end"],
            "waystage_s": round(ours_s, 3),
        },
    }


def build(folder: Path) -> Path:
    """Compile the peer's program. Raises BenchError."""
    if not Path("/usr/include/simgrid/s4u.hpp").is_file():
        raise BenchError("SimGrid is not installed: apt-get install libsimgrid-dev g++")
    binary = folder / "rates"
    run_program([installed("g++"), "-std=c++17", "-O2", "-o", binary, SOURCE, "-lsimgrid"])
    return binary


def random_case(seed: int) -> Case:
    """From a few flows on a few links to hundreds; odd cases have rate limits."""
    random = np.random.default_rng(seed)
    links = int(random.integers(2, 60))
    count = int(random.integers(1, 300))
    capacities = (
        random.choice([1e8, 2.5e8, 1e9, 1.25e9], links) if seed % 4 else random.uniform(1e7, 1e9, links)
    )
    hops = random.integers(1, min(7, links + 1), count)
    routes = [random.choice(links, int(n), replace=False).astype(np.uint32) for n in hops]
    limited = (random.random(count) < 0.2) & bool(seed % 2)
    limits = np.where(limited, random.uniform(1e6, 1e8, count), 0.0)
    sizes = np.rint(random.uniform(1e8, 1e10, count))
    return Case(capacities.astype(np.float64), sizes, limits, routes)


def ours(case: Case) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """A time before anything ends, the rates until then, and all ending times: each flow is a program."""
    clock = FlowClock(case.capacities)
    offsets = np.cumsum([0, *(len(r) for r in case.routes)]).astype(np.uint64)
    clock.add_routes(offsets, np.concatenate(case.routes))
    for i in range(len(case.routes)):
        program = FlowProgram()
        program.step()
        limit = float(case.limits[i]) or float("inf")
        key = np.array([i], dtype=np.uint32)
        program.flows(key, case.bytes[i : i + 1], flow_class=i, limit_bps=limit)
        clock.start(program)
    clock.run_until(0.0)
    rates = np.array([clock.rates(i)[case.routes[i][0]] for i in range(len(case.routes))])
    sample_s = 0.5 * float(np.min(case.bytes / rates))
    ends = np.zeros(len(case.routes))
    while ended := clock.run_until():
        for at, which in ended:
            ends[which] = at
    return sample_s, rates, ends


def theirs(
    binary: Path, case: Case, sample_s: float, folder: Path
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """SimGrid's rates and ending times. Raises BenchError where it fails."""
    lines = [f"{len(case.capacities)} {len(case.routes)}", " ".join(f"{c:.17g}" for c in case.capacities)]
    for size, limit, route in zip(case.bytes, case.limits, case.routes, strict=True):
        lines.append(f"{size:.17g} {limit:.17g} {len(route)} {' '.join(map(str, route))}")
    path = folder / "case.txt"
    path.write_text("\n".join(lines) + "\n")
    options = [f"--cfg={option}" for option in PURE_MAX_MIN]
    out = run_program([binary, path, f"{sample_s:.17g}", *options, "--log=root.thres:critical"], timeout=300)
    values = np.array([[float(x) for x in line.split()] for line in out.splitlines()])
    return values[:, 0], values[:, 1]


def version() -> str:
    """The version of the installed package."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "libsimgrid-dev"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
