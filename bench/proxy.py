"""Throughput and latency of TCP programs through `waystage proxy` over a long path with loss, beside plain TCP.

The path of `waystage lab wan`, 10 ms round trip, 200 Mbit/s (two CPUs carry the programs, both ends and the path;
`details` has 1 Gbit/s too, and whether the path kept up). iperf3 at left goes through a fixed port of the proxy to
iperf3 at right; a fraction is its payload over C (1 - p) at 1 % and 10 % random loss. Peers: the same iperf3 without
the proxy, CUBIC and BBR. `added_ms`: 64 bytes there and back over the path without loss, one connection each,
alternately through the proxy and without; the difference of the medians. The floor is `_relay.c` in its two places: at
each end a bare TCP relay, a read and a write for what has come, nothing encrypted; `added_x_floor` is what the relays
add over what the proxy adds.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import RIGHT, late, path, run_left, serving, wrong_share

from waystage.bench import BenchOptions, Figures, compile_c, take_turns
from waystage.stats import median

DELAY = "5ms"
TURNS = 5
LOSSES = {"1pct": 0.01, "10pct": 0.10}
RATES = {"200Mbit": 200e6, "1Gbit": 1e9}
FIRST_RATE = "200Mbit"
"""That of the figures."""

OMIT_S = 2
LATENCY = "latency"
ECHO_PORT = 5300
RELAY_PORTS = 5301, 5302
"""At left and at right."""

RELAY = Path(__file__).with_name("_relay.c")

ECHO = """
import socket, sys, threading
def echo(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(64):
        connection.sendall(data)
listener = socket.create_server(("", int(sys.argv[1])))
while True:
    threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()
"""

ASKER = """
import json, socket, sys, time
count, ends = int(sys.argv[1]), sys.argv[2:]
connections = []
for end in ends:
    host, port = end.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connections.append(connection)
took = [[] for _ in ends]
for number in range(count + 20):
    for connection, times in zip(connections, took):
        began = time.perf_counter_ns()
        connection.sendall(bytes(64))
        left = 64
        while left:
            left -= len(connection.recv(left))
        if number >= 20:
            times.append((time.perf_counter_ns() - began) / 1e6)
        time.sleep(0.001)
print(json.dumps(took))
"""
TAKES_S = 240, 35


def run(options: BenchOptions) -> dict[str, Any]:
    seconds = 1.5 if options.quick else 8.0
    controls = peers.congestion_controls()
    contestants: dict[str, Any] = {
        key(who, rate, loss): partial(_flow, who, rate, loss, seconds)
        for rate in ([FIRST_RATE] if options.quick else RATES)
        for loss in LOSSES
        for who in ("proxy", *controls)
    }
    with tempfile.TemporaryDirectory(prefix="waystage-proxy-") as folder:
        relay = compile_c(RELAY, into=Path(folder))
        contestants[LATENCY] = partial(_latency, str(relay), 100 if options.quick else 300)
        turns = take_turns(options, contestants, turns=TURNS, invalid=late)
    fraction = turns.medians("fraction")
    theirs = {
        f"{who}_fraction_{loss}": round(fraction[key(who, FIRST_RATE, loss)], 4)
        for who in controls
        for loss in LOSSES
    }
    return {
        "figures": {
            "fraction_1pct": round(fraction[key("proxy", FIRST_RATE, "1pct")], 3),
            "fraction_10pct": round(fraction[key("proxy", FIRST_RATE, "10pct")], 3),
            "added_ms": round(turns.median(LATENCY, "added_ms"), 3),
            "added_x_floor": round(
                turns.median(LATENCY, "relays_added_ms") / turns.median(LATENCY, "added_ms"), 2
            ),
        },
        "peers": theirs
        | {name: round(turns.median(LATENCY, name), 3) for name in ("direct_ms", "relays_added_ms")},
        "details": turns.details() | {"rate": FIRST_RATE},
    }


def key(who: str, rate: str, loss: str) -> str:
    return f"{who} {rate} {loss}"


def _flow(who: str, rate: str, loss: str, seconds: float, turn: int) -> Figures:
    """One flow, through the proxy or by TCP with a congestion control."""
    with path({"delay": DELAY, "rate": rate, "loss": f"{100 * LOSSES[loss]:g}%"}, turn + 1) as name:
        if who == "proxy":
            with _proxy(name, peers.IPERF_PORT):
                carried = peers.iperf3(name, seconds, omit_s=OMIT_S, to="127.0.0.1")
        else:
            carried = peers.iperf3(name, seconds, omit_s=OMIT_S, congestion=who)
    return {**carried.figures(), "fraction": carried.rate_bps / (RATES[rate] * (1 - LOSSES[loss]))}


def _latency(relay: str, count: int, turn: int) -> Figures:
    echo = [sys.executable, "-I", "-c", ECHO, str(ECHO_PORT)]
    near, far = RELAY_PORTS
    ends = [f"{RIGHT}:{ECHO_PORT}", f"127.0.0.1:{ECHO_PORT}", f"127.0.0.1:{near}"]
    with path({"delay": DELAY, "rate": FIRST_RATE}) as name:
        with (
            _proxy(name, ECHO_PORT),
            serving(name, "right", echo, ECHO_PORT),
            serving(name, "right", [relay, str(far), "127.0.0.1", str(ECHO_PORT)], far),
            serving(name, "left", [relay, str(near), RIGHT, str(far)], near),
        ):
            asked = run_left(name, [sys.executable, "-I", "-c", ASKER, str(count), *ends], 600)
        wrong = wrong_share(name)
    direct, proxied, relayed = json.loads(asked.out)
    return {
        "direct_ms": median(direct),
        "proxy_ms": median(proxied),
        "relays_ms": median(relayed),
        "added_ms": median(proxied) - median(direct),
        "relays_added_ms": median(relayed) - median(direct),
        "wrong_share": wrong,
    }


@contextlib.contextmanager
def _proxy(name: str, port: int) -> Iterator[None]:
    """A server at right and a proxy at left that forwards a port of left's loopback to the same one at right."""
    with copies.ends_of(name) as ends:
        ready = ends.folder / "proxied"
        forward = ["--port", str(copies.PORT), "--forward", f"{port}:127.0.0.1:{port}"]
        argv = ends.command("proxy", RIGHT, *forward, "--ready-file", str(ready), "--quiet")
        with serving(name, "left", argv, ready):
            yield
