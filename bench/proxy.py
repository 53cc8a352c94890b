"""How fast and how late TCP programs are through `waystage proxy`, over a long path that loses packets, beside TCP itself.

The path of `waystage lab wan`, 10 ms round trip, 200 Mbit/s (two processors carry programs, both ends and the path; `details` has 1 Gbit/s too, and
whether the path was valid then). iperf3 at the left end goes through a fixed port of the proxy to iperf3 at the right: its payload over C (1 - p)
at 1 % and 10 % random loss. Peers, in turns with it: the same iperf3 without the proxy, CUBIC and BBR. Added latency: 64 bytes there and back, over
the same path without loss and over one connection each, through the proxy and without, in turns; the difference of the medians.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _wan_peers as peers

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError, BenchOptions
from waystage.stats import median
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths

DELAY = "5ms"
TURNS = 5
LOSSES = {"1pct": 0.01, "10pct": 0.10}
RATES = {"200Mbit": 200e6, "1Gbit": 1e9}
FIRST_RATE = "200Mbit"
"""That of the figures."""

SERVER_PORT, ECHO_PORT = 7900, 5300
READY_S = 60.0

ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(64):
        connection.sendall(data)
    connection.close()
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


def run(options: BenchOptions) -> dict[str, Any]:
    turns = options.repetitions or (1 if options.quick else TURNS)
    seconds = 3.0 if options.quick else 8.0
    rates = [FIRST_RATE] if options.quick else list(RATES)
    controls = peers.congestion_controls()
    runs: dict[str, list[dict[str, Any]]] = {}
    steps = turns * (len(rates) * len(LOSSES) + 1)
    late: list[dict[str, Any]] = []
    done = 0
    for turn in range(turns):
        for rate in rates:
            for loss in LOSSES:
                options.progress(f"{rate}, loss {loss}, turn {turn + 1}", done / steps)
                done += 1
                for who, result in _flows(rate, loss, seconds, controls, turn + 1).items():
                    runs.setdefault(f"{who} {rate} {loss}", []).append(result)
        options.progress(f"latency, turn {turn + 1}", done / steps)
        done += 1
        late.append(_latency(100 if options.quick else 300))

    def fraction(who: str, rate: str, loss: str) -> float:
        return median([result["fraction"] for result in runs[f"{who} {rate} {loss}"]])

    return {
        "figures": {
            "fraction_1pct": round(fraction("proxy", FIRST_RATE, "1pct"), 3),
            "fraction_10pct": round(fraction("proxy", FIRST_RATE, "10pct"), 3),
            "added_ms": round(median([each["added_ms"] for each in late]), 3),
        },
        "peers": {
            f"{who}_fraction_{loss}": round(fraction(who, FIRST_RATE, loss), 4)
            for who in controls
            for loss in LOSSES
        }
        | {"direct_ms": round(median([each["direct_ms"] for each in late]), 3)},
        "details": {
            "turns": turns,
            "rate": FIRST_RATE,
            "fractions": {
                key: round(median([r["fraction"] for r in found]), 4) for key, found in runs.items()
            },
            "valid": {key: all(r["valid"] for r in found) for key, found in runs.items()},
            "runs": runs,
            "latency": late,
        },
    }


def _flows(rate: str, loss: str, seconds: float, controls: list[str], seed: int) -> dict[str, dict[str, Any]]:
    """One flow through the proxy and one of each peer, over one path."""
    properties = {"delay": DELAY, "rate": rate, "loss": f"{100 * LOSSES[loss]:g}%"}
    results = {}
    with peers.path(f"b{uuid.uuid4().hex[:8]}", properties, seed=seed) as name:
        with _proxy(name, [peers.IPERF_PORT]):
            results["proxy"] = _share(peers.iperf3(name, seconds, omit_s=2, to="127.0.0.1"), rate, loss)
        for control in controls:
            carried = peers.iperf3(name, seconds, omit_s=2, congestion=control)
            results[control] = _share(carried, rate, loss)
    return results


def _share(carried: peers.Carried, rate: str, loss: str) -> dict[str, Any]:
    return {
        "fraction": carried.rate_bps / (RATES[rate] * (1 - LOSSES[loss])),
        "mbps": round(carried.rate_bps / 1e6, 1),
        "valid": carried.valid,
        "idle_pct": carried.idle_pct,
    }


def _latency(count: int) -> dict[str, Any]:
    properties = {"delay": DELAY, "rate": FIRST_RATE}
    with peers.path(f"b{uuid.uuid4().hex[:8]}", properties) as name, _proxy(name, [ECHO_PORT]):
        with contextlib.ExitStack() as ended:
            for address in (peers.RIGHT, "127.0.0.1"):
                echo = [sys.executable, "-I", "-c", ECHO, address, str(ECHO_PORT)]
                process = ended.enter_context(_running(name, "right", echo))
                assert process.stdout is not None
                process.stdout.readline()
            ends = [f"{peers.RIGHT}:{ECHO_PORT}", f"127.0.0.1:{ECHO_PORT}"]
            asker = [sys.executable, "-I", "-c", ASKER, str(count), *ends]
            asking = paths.start(name, "left", asker, stdout=subprocess.PIPE, text=True)
            out, _ = asking.communicate(timeout=600)
        valid = wan.status(name)["valid"]
    direct, proxied = json.loads(out)
    return {
        "direct_ms": median(direct),
        "proxy_ms": median(proxied),
        "added_ms": median(proxied) - median(direct),
        "valid": valid,
    }


@contextlib.contextmanager
def _proxy(name: str, ports: list[int]) -> Iterator[None]:
    """A server at right and a proxy at left that leads each port of this end to the same one at the other."""
    with tempfile.TemporaryDirectory(prefix="waystage-proxy-") as text, contextlib.ExitStack() as ended:
        folder = Path(text)
        for key in ("server.key", "client.key"):
            wan_make_key(folder / key)
        config = folder / "serve.toml"
        config.write_text(
            f'listen = "{peers.RIGHT}:{SERVER_PORT}"\nkey = "server.key"\nlog = "serve.log"\n'
            f'[users.bench]\nkeys = ["{wan_read_key(folder / "client.key")}"]\naccount = "root"\nproxy = ["allow 127.0.0.1"]\n',
            encoding="utf-8",
        )
        waystage = [sys.executable, "-m", "waystage"]
        forwards = [word for port in ports for word in ("--forward", f"{port}:127.0.0.1:{port}")]
        serve = [*waystage, "serve", "--config", str(config), "--ready-file", str(folder / "served")]
        trust = [
            "--server-key",
            wan_read_key(folder / "server.key"),
            "--identity",
            str(folder / "client.key"),
        ]
        proxy = [*waystage, "proxy", peers.RIGHT, "--port", str(SERVER_PORT), *forwards, *trust, "--udp-wait", "20",
                 "--ready-file", str(folder / "proxied"), "--quiet"]  # fmt: skip
        for side, argv, ready in (("right", serve, "served"), ("left", proxy, "proxied")):
            process = ended.enter_context(_running(name, side, argv))
            _await(folder / ready, process)
        yield


@contextlib.contextmanager
def _running(name: str, side: str, argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = paths.start(name, side, argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _await(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + READY_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = process.communicate()[1].strip()
            raise BenchError(f"{file.name} was not reached: {said[-300:] or 'no word'}")
        time.sleep(0.05)
