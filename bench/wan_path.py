"""How much the emulated wide-area path carries, what that costs, and how late it is.

The path of `waystage lab wan`, 10 ms round trip, without loss, with TCP and UDP by iperf3 through it: at 1 Gbit/s, and without a limit. Processor
time is that of the path's process, which has the receiving TCP stack's part in it. `details` has every run: rates, lateness, whether the
path was quick enough by its own count (at most 0.1 % late or lost). On two processors sender, receiver and path share them. The peer is TCP over
a veth pair between the same kind of namespaces, without any emulation: what this machine carries at best.
"""

from __future__ import annotations

import uuid
from typing import Any

import _wan_peers as peers

from waystage.bench import BenchError, BenchOptions
from waystage.stats import median
from waystage.worlds.lab import wan
from waystage.worlds.lab.commands import run as tool

DELAY = "5ms"
RATE_BPS = 1e9
TURNS = 5


def run(options: BenchOptions) -> dict[str, Any]:
    turns = options.repetitions or (1 if options.quick else TURNS)
    seconds = 2.0 if options.quick else 8.0
    kinds: dict[str, dict[str, str]] = {
        "tcp": {"rate": "1Gbit"},
        "udp": {"rate": "1Gbit"},
        "tcp_unlimited": {},
        "udp_unlimited": {},
    }
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    veth: list[float] = []
    done = 0
    for turn in range(turns):
        for kind, properties in kinds.items():
            options.progress(f"{kind}, turn {turn + 1}", done / (turns * (len(kinds) + 1)))
            results[kind].append(_one(kind, properties, seconds))
            done += 1
        options.progress(f"veth, turn {turn + 1}", done / (turns * (len(kinds) + 1)))
        veth.append(_veth(seconds))
        done += 1

    def middle(kind: str, key: str) -> float:
        return median([float(result[key]) for result in results[kind]])

    return {
        "figures": {
            "tcp_gbps": round(middle("tcp", "gbps"), 3),
            "tcp_core_s_per_gbit": round(middle("tcp", "core_s_per_gbit"), 3),
            "tcp_wrong_pct": round(middle("tcp", "wrong_pct"), 3),
            "udp_packets_per_s": round(middle("udp", "packets_per_s")),
            "udp_core_s_per_gbit": round(middle("udp", "core_s_per_gbit"), 3),
            "most_gbps": round(middle("tcp_unlimited", "gbps"), 3),
            "most_packets_per_s": round(middle("udp_unlimited", "packets_per_s")),
        },
        "peers": {"veth_gbps": round(median(veth), 3)},
        "details": {
            "turns": turns,
            "late_p99_us": {kind: round(middle(kind, "late_p99_us"), 1) for kind in kinds},
            "runs": results,
            "veth_gbps": [round(rate, 3) for rate in veth],
        },
    }


def _one(kind: str, properties: dict[str, str], seconds: float) -> dict[str, Any]:
    with peers.path(f"b{uuid.uuid4().hex[:8]}", {"delay": DELAY, **properties}) as name:
        if kind.startswith("tcp"):
            carried = peers.iperf3(name, seconds)
        else:
            # Past what the link takes: iperf3 paces itself by a timer, and does not reach what it is asked for.
            carried = peers.iperf3_udp(name, seconds, 2 * RATE_BPS if "unlimited" in kind else RATE_BPS)
        status = wan.status(name)
    forward = status["directions"]["forward"]
    gbit = 8 * forward["out_bytes"] / 1e9
    if gbit == 0:
        raise BenchError(f"{kind}: nothing crossed the path")
    return {
        "gbps": round(carried.rate_bps / 1e9, 4),
        "packets_per_s": round(forward["out"] / carried.seconds),
        "core_s_per_gbit": round(carried.path_cpu_s / gbit, 4),
        "late_p99_us": forward["lateness"]["p99_us"],
        "late_mean_us": round(forward["lateness"]["mean_us"], 1),
        "wrong_pct": round(100 * max(d["wrong_share"] for d in status["directions"].values()), 3),
        "overflow": forward["overflow"],
        "lost_buffer": forward["lost_buffer"],
        "valid": status["valid"],
        "idle_pct": carried.idle_pct,
    }


def _veth(seconds: float) -> float:
    """TCP between two namespaces over a veth pair, in Gbit/s: no emulation at all."""
    with peers.path(f"b{uuid.uuid4().hex[:8]}", {}) as name:
        left, right = (wan.find(name).namespace(side) for side in ("left", "right"))
        tool(["ip", "-n", left, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", right])
        for namespace, address in ((left, "10.59.0.1/30"), (right, "10.59.0.2/30")):
            tool(["ip", "-n", namespace, "addr", "add", address, "dev", "v0"])
            tool(["ip", "-n", namespace, "link", "set", "v0", "up"])
        return peers.iperf3(name, seconds, to="10.59.0.2").rate_bps / 1e9
