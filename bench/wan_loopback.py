"""How near one encrypted wide-area connection comes to a plain TLS stream on this machine's loopback interface.

Both ends are threads of this process and send from memory, so that nothing but the two ways is measured: no file, no path, no
emulator. Packets are made for an MTU of 1500 and of 9000, and TCP's segments as large; the loopback interface itself takes more, so
the kernel carries both in large pieces (GSO and GRO, TSO). The ways take turns in each repetition. CPU time is that of the whole
process, both ends together, in user and kernel mode.

`x_tls_tcp` is the lower of both MTUs' ratio of median rates, ours to TLS over TCP; `core_s_per_gbit` is our median CPU time of one
gigabit at an MTU of 1500. `x_tls_tcp_2` and `core_s_per_gbit_2` are the same for two connections of one copy, which take what one
would but have a socket and a thread each at either end. `spread_pct` in `details` is the distance of the slowest from the quickest repetition over the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from waystage._native import WanError, wan_loopback, wan_tls_stream
from waystage.bench import BenchError, BenchOptions
from waystage.stats import median

BYTES, QUICK_BYTES = 2 << 30, 64 << 20
REPETITIONS = 7

TWO = "waystage, 2 connections"

DATAGRAMS = {1500: 1472, 9000: 8972}
"""MTU -> payload of a UDP packet: less the headers of IPv4 and UDP."""

SEGMENTS = {1500: 1448, 9000: 8948}
"""MTU -> payload of a TCP segment: less the headers of IPv4 and TCP, with time stamps."""


def run(options: BenchOptions) -> dict[str, Any]:
    size = QUICK_BYTES if options.quick else BYTES
    repetitions = options.repetitions or (2 if options.quick else REPETITIONS)
    taken: dict[str, dict[str, list[float]]] = {}
    lost = 0
    steps, done = repetitions * 3 * len(DATAGRAMS), 0

    def ours(mtu: int, connections: int = 1) -> float:
        nonlocal lost
        seconds, _, lost_packets, _ = wan_loopback(size, DATAGRAMS[mtu], "fair", connections)
        lost += lost_packets
        return seconds

    def two(mtu: int) -> float:
        return ours(mtu, 2)

    def theirs(mtu: int) -> float:
        return wan_tls_stream(size, SEGMENTS[mtu])

    try:
        for turn in range(repetitions):
            for mtu in DATAGRAMS:
                ways = [("waystage", ours), ("TLS over TCP", theirs), (TWO, two)]
                # None always goes first.
                for name, way in ways if turn % 2 == 0 else reversed(ways):
                    options.progress(f"{name}, MTU {mtu}, turn {turn + 1}", done / steps)
                    _measure(way, mtu, size, taken.setdefault(f"{name}, MTU {mtu}", {}))
                    done += 1
    except WanError as error:
        raise BenchError(str(error)) from None
    medians = {name: {key: median(values) for key, values in by.items()} for name, by in taken.items()}

    def ratios(name: str) -> dict[int, float]:
        plain = {mtu: medians[f"TLS over TCP, MTU {mtu}"]["gbit_per_s"] for mtu in DATAGRAMS}
        return {mtu: medians[f"{name}, MTU {mtu}"]["gbit_per_s"] / plain[mtu] for mtu in DATAGRAMS}

    ratio, ratio_of_two = ratios("waystage"), ratios(TWO)
    return {
        "figures": {
            "x_tls_tcp": round(min(ratio.values()), 3),
            "core_s_per_gbit": round(medians["waystage, MTU 1500"]["core_s_per_gbit"], 4),
            "x_tls_tcp_2": round(min(ratio_of_two.values()), 3),
            "core_s_per_gbit_2": round(medians[f"{TWO}, MTU 1500"]["core_s_per_gbit"], 4),
        },
        "peers": {
            f"{name}: {key}": round(by[key], 4)
            for name, by in medians.items()
            if name.startswith("TLS")
            for key in by
        },
        "details": {
            "bytes": size,
            "repetitions": repetitions,
            "lost_packets": lost,
            "x_tls_tcp": {str(mtu): round(value, 3) for mtu, value in ratio.items()},
            "x_tls_tcp_2": {str(mtu): round(value, 3) for mtu, value in ratio_of_two.items()},
            "median": {
                name: {key: round(value, 4) for key, value in by.items()} for name, by in medians.items()
            },
            "spread_pct": {
                name: round(
                    100 * (max(by["gbit_per_s"]) - min(by["gbit_per_s"])) / medians[name]["gbit_per_s"], 1
                )
                for name, by in taken.items()
            },
            "all": {
                name: {key: [round(value, 4) for value in values] for key, values in by.items()}
                for name, by in taken.items()
            },
        },
    }


def _measure(way: Callable[[int], float], mtu: int, size: int, into: dict[str, list[float]]) -> None:
    gbit = 8 * size / 1e9
    cpu = time.process_time()
    seconds = way(mtu)
    into.setdefault("core_s_per_gbit", []).append((time.process_time() - cpu) / gbit)
    into.setdefault("gbit_per_s", []).append(gbit / seconds)
