"""How near one encrypted wide-area connection comes to a plain TLS stream on this machine's loopback interface.

Both ends are threads of this process and send from memory, so that nothing but the two transports is measured: no
file, no path, no emulator. Packets are made for an MTU of 1500 and of 9000, and TCP's segments as large; the loopback
interface itself takes more, so the kernel carries both in large pieces (GSO and GRO, TSO). CPU time is that of the
process, both ends together, in user and kernel mode.

`x_tls_tcp` is the lower of both MTUs' ratio of median rates, ours to TLS over TCP; `core_s_per_gbit` is our median
CPU time of one gigabit at an MTU of 1500. `x_tls_tcp_2` and `core_s_per_gbit_2` are the same for two connections of
one copy, which carry the data of one but have a socket and a thread each at either end. `spread_pct` in `details` is
the distance of the slowest from the fastest turn over the median.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from waystage._native import WanError, wan_loopback, wan_tls_stream
from waystage.bench import BenchError, BenchOptions, Figures, take_turns, timed

BYTES, QUICK_BYTES = 2 << 30, 64 << 20
REPETITIONS = 7

ONE, TWO, TLS = "waystage", "waystage, 2 connections", "TLS over TCP"

DATAGRAMS = {1500: 1472, 9000: 8972}
"""MTU -> payload of a UDP packet: less the headers of IPv4 and UDP."""

SEGMENTS = {1500: 1448, 9000: 8948}
"""MTU -> payload of a TCP segment: less the headers of IPv4 and TCP, with time stamps."""
TAKES_S = 170, 10


def run(options: BenchOptions) -> dict[str, Any]:
    size = QUICK_BYTES if options.quick else BYTES
    names = [(way, mtu) for mtu in DATAGRAMS for way in (ONE, TLS, TWO)]
    contestants = {key(way, mtu): partial(_measured, way, mtu, size) for way, mtu in names}
    turns = take_turns(options, contestants, turns=REPETITIONS, quick=2)

    def ratios(way: str) -> dict[str, float]:
        return {str(mtu): turns.ratio(key(way, mtu), key(TLS, mtu), "gbit_per_s") for mtu in DATAGRAMS}

    def spread(name: str) -> float:
        rates = turns.values(name, "gbit_per_s")
        return round(100 * (max(rates) - min(rates)) / turns.median(name, "gbit_per_s"), 1)

    one, two = ratios(ONE), ratios(TWO)
    return {
        "figures": {
            "x_tls_tcp": round(min(one.values()), 3),
            "core_s_per_gbit": round(turns.median(key(ONE, 1500), "core_s_per_gbit"), 4),
            "x_tls_tcp_2": round(min(two.values()), 3),
            "core_s_per_gbit_2": round(turns.median(key(TWO, 1500), "core_s_per_gbit"), 4),
        },
        "peers": {
            f"{key(TLS, mtu)}: {figure}": round(turns.median(key(TLS, mtu), figure), 4)
            for mtu in DATAGRAMS
            for figure in ("core_s_per_gbit", "gbit_per_s")
        },
        "details": turns.details()
        | {
            "bytes": size,
            "lost_packets": sum(
                row.get("lost_packets", 0) for name in contestants for row in turns.rows(name)
            ),
            "x_tls_tcp": {mtu: round(value, 3) for mtu, value in one.items()},
            "x_tls_tcp_2": {mtu: round(value, 3) for mtu, value in two.items()},
            "spread_pct": {name: spread(name) for name in contestants},
        },
    }


def key(way: str, mtu: int) -> str:
    return f"{way}, MTU {mtu}"


def _measured(way: str, mtu: int, size: int, turn: int) -> Figures:
    figures: dict[str, float] = {}

    def send() -> None:
        if way == TLS:
            figures["seconds"] = wan_tls_stream(size, SEGMENTS[mtu])
        else:
            connections = 2 if way == TWO else 1
            figures["seconds"], _, figures["lost_packets"], _ = wan_loopback(
                size, DATAGRAMS[mtu], "fair", connections
            )

    try:
        cpu_s = timed(send)["cpu_s"]
    except WanError as error:
        raise BenchError(str(error)) from None
    gbit = 8 * size / 1e9
    return {**figures, "core_s_per_gbit": cpu_s / gbit, "gbit_per_s": gbit / figures["seconds"]}
