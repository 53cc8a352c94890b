"""How much the emulated wide-area path carries, what that costs, and how late it is.

The path of `waystage lab wan`, 10 ms round trip, without loss, with TCP and UDP by iperf3 through it: at 1 Gbit/s,
and without a limit. CPU time is that of the path's process, which includes the receiving TCP stack's part. `details`
has every run: rates, lateness, and whether the path kept up by its own count (at most 0.1 % late or lost). On two
CPUs sender, receiver and path share them. The peer is TCP over a veth pair between the same kind of namespaces
without emulation: what this machine carries at best.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import _wan_peers as peers
from _wan_paths import path

from waystage.bench import BenchError, BenchOptions, Figures, take_turns
from waystage.worlds.lab import wan
from waystage.worlds.lab.commands import run as tool

DELAY = "5ms"
RATE_BPS = 1e9
TURNS = 5
KINDS: dict[str, dict[str, str]] = {
    "tcp": {"rate": "1Gbit"},
    "udp": {"rate": "1Gbit"},
    "tcp_unlimited": {},
    "udp_unlimited": {},
}
TAKES_S = 150, 25


def run(options: BenchOptions) -> dict[str, Any]:
    seconds = 2.0 if options.quick else 8.0
    emulated = {kind: partial(_one, kind, seconds) for kind in KINDS}
    # Lateness is itself a figure here, and makes no measurement invalid.
    turns = take_turns(options, {**emulated, "veth": partial(_veth, seconds)}, turns=TURNS)

    def figure(kind: str, key: str, digits: int | None = 3) -> float:
        return round(turns.median(kind, key), digits)

    return {
        "figures": {
            "tcp_gbps": figure("tcp", "gbps"),
            "tcp_core_s_per_gbit": figure("tcp", "core_s_per_gbit"),
            "tcp_wrong_pct": figure("tcp", "wrong_pct"),
            "udp_packets_per_s": figure("udp", "packets_per_s", None),
            "udp_core_s_per_gbit": figure("udp", "core_s_per_gbit"),
            "most_gbps": figure("tcp_unlimited", "gbps"),
            "most_packets_per_s": figure("udp_unlimited", "packets_per_s", None),
        },
        "peers": {"veth_gbps": figure("veth", "gbps")},
        "details": turns.details(),
    }


def _one(kind: str, seconds: float, turn: int) -> Figures:
    with path({"delay": DELAY, **KINDS[kind]}) as name:
        if kind.startswith("tcp"):
            carried = peers.iperf3(name, seconds)
        else:
            # Past what the link takes: iperf3 paces itself by a timer, and does not reach the rate that it is given.
            carried = peers.iperf3_udp(name, seconds, 2 * RATE_BPS if "unlimited" in kind else RATE_BPS)
        status = wan.status(name)
    forward = status["directions"]["forward"]
    gbit = 8 * forward["out_bytes"] / 1e9
    if gbit == 0 or carried.ran is None:
        raise BenchError(f"{kind}: nothing crossed the path")
    return {
        "gbps": carried.rate_bps / 1e9,
        "packets_per_s": forward["out"] / carried.seconds,
        "core_s_per_gbit": carried.ran.path_cpu_s / gbit,
        "late_p99_us": forward["lateness"]["p99_us"],
        "late_mean_us": forward["lateness"]["mean_us"],
        "wrong_pct": 100 * max(d["wrong_share"] for d in status["directions"].values()),
        "overflow": forward["overflow"],
        "lost_buffer": forward["lost_buffer"],
        "kept_up": status["valid"],
    }


def _veth(seconds: float, turn: int) -> Figures:
    """TCP between two namespaces over a veth pair: no emulation at all."""
    with path({}) as name:
        left, right = (wan.find(name).namespace(side) for side in ("left", "right"))
        tool(["ip", "-n", left, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", right])
        for namespace, address in ((left, "10.59.0.1/30"), (right, "10.59.0.2/30")):
            tool(["ip", "-n", namespace, "addr", "add", address, "dev", "v0"])
            tool(["ip", "-n", namespace, "link", "set", "v0", "up"])
        return {"gbps": peers.iperf3(name, seconds, to="10.59.0.2").rate_bps / 1e9}
