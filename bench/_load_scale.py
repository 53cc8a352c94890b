"""Load mode at ten thousand hosts: what `sim-scale` measures of it, and how its cost grows.

For `sim-scale`: `load_part(options)` gives (seconds of 1 M flows between 10,240 hosts under D-mod-K, details). The
details hold greedy routing of the same flows, and `curve`: seconds and nanoseconds a flow, hosts and flows growing
tenfold from row to row. The caller measures the memory of its process.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from waystage._native import Network
from waystage.bench import BenchOptions

HOSTS = 10_240
FLOWS = 1_000_000

BYTES_PER_S = 1.25e9
"""10 Gbit/s; load mode does not depend on it."""

SHAPES = {
    512: ([16, 8, 4], [1, 8, 8]),
    1_024: ([16, 8, 8], [1, 8, 8]),
    10_240: ([20, 16, 32], [1, 16, 16]),
    102_400: ([40, 32, 80], [1, 32, 32]),
}
"""Hosts -> children and parents by level: fat trees with full or nearly full bisection."""


def load_part(options: BenchOptions) -> tuple[float, dict[str, Any]]:
    """Seconds for 10,240 hosts and 1 M flows, building the network included, and what explains them."""
    options.progress("load mode, 10,240 hosts", 0.0)
    seconds, row = measure(HOSTS, FLOWS, "d-mod-k")
    details: dict[str, Any] = {"d-mod-k": row}
    if not options.quick:
        _, details["greedy-max"] = measure(HOSTS, FLOWS, "greedy-max")
    options.progress("load mode, cost as hosts and flows grow", 0.3)
    details["curve"] = curve(quick=options.quick)
    return seconds, details


def curve(*, quick: bool = False) -> list[dict[str, float]]:
    """Hosts and flows ten times as many from row to row; then flows alone."""
    cases = [(1_024, 100_000), (10_240, 1_000_000), (102_400, 10_000_000)]
    flows_alone = [(10_240, 100_000), (10_240, 10_000_000)]
    if quick:
        cases, flows_alone = cases[:2], flows_alone[:1]
    return [measure(hosts, flows, "d-mod-k")[1] for hosts, flows in [*cases, *flows_alone]]


def measure(hosts: int, flows: int, router: str) -> tuple[float, dict[str, float]]:
    """Random flows, each between two hosts drawn at random, from seed 0."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, hosts, flows, dtype=np.uint32)
    dst = rng.integers(0, hosts, flows, dtype=np.uint32)
    amount = rng.integers(1, 1 << 20, flows).astype(np.float64)
    begin = time.perf_counter()
    children, parents = SHAPES[hosts]
    network = Network.xgft(children, parents, BYTES_PER_S, BYTES_PER_S)
    built = time.perf_counter()
    routes = network.route_loads(router, src, dst, amount)
    end = time.perf_counter()
    # A figure that nothing was computed for is none: every flow leaves its host by one link.
    sent = routes.loads[network.links_from < hosts].sum()
    if sent != amount[src != dst].sum():
        raise RuntimeError(f"{router}: hosts send {sent} bytes where flows have {amount[src != dst].sum()}")
    return end - begin, {
        "hosts": hosts,
        "flows": flows,
        "build_s": built - begin,
        "route_s": end - built,
        "total_s": end - begin,
        "ns_per_flow": (end - begin) / flows * 1e9,
    }
