"""Peers measured over an emulated path: TCP by iperf3, QUIC by quinn, rsync, rclone. Shared by the wide-area benchmarks.

Every peer runs at the ends of a path that `waystage lab wan` made, unchanged. What is not installed is left out and named. Rates are of
payload, in bits a second; where the path was not valid meanwhile, the result says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError
from waystage.machine import CpuWatch
from waystage.worlds.lab import wan
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.wan import paths

LEFT, RIGHT = paths.IPV4["left"], paths.IPV4["right"]
IPERF_PORT, RSYNC_PORT, HTTP_PORT, QUIC_PORT = 5201, 8730, 8731, 8732
UDP_TRIES = 8
UDP_UNHEARD = "unable to read from stream socket"
"""iperf3 begins a UDP test with one datagram each way and sends neither again: where 5 % are lost each way, each tenth test fails so."""
ANSWER_S = 30.0
PATIENCE = 20.0
"""A peer gets so many times the seconds that the path's rate alone would take, and a minute."""


class TooSlow(BenchError):
    """A program did not end in its time."""


@dataclass(frozen=True)
class Carried:
    """What a peer moved. `cpu` is the path's own processor time, in seconds; `idle_pct` that of the machine."""

    payload_bytes: int
    seconds: float
    valid: bool
    path_cpu_s: float
    idle_pct: float
    details: Mapping[str, Any]

    @property
    def rate_bps(self) -> float:
        return 8 * self.payload_bytes / self.seconds if self.seconds > 0 else 0.0


@contextlib.contextmanager
def path(
    name: str,
    properties: Mapping[str, str],
    seed: int = 1,
    *,
    back: Mapping[str, str] | None = None,
    tick_ns: int | None = None,
) -> Iterator[str]:
    """A path as long as the body runs: `path("bench", {"rate": "1Gbit", "delay": "5ms"})`; `back` is what is different there."""
    if os.geteuid() != 0:
        raise BenchError("a path between namespaces needs root: run as root")
    profile = msgspec.structs.replace(
        wan.Profile(both=wan.said(properties), back=wan.said(back or {})), seed=seed, tick=tick_ns
    )
    profile = msgspec.structs.replace(profile, late=max(profile.late, profile.round_trip_ns // 100))
    try:
        paths.up(name, profile)
    except LabError as error:
        raise BenchError(str(error)) from error
    try:
        yield name
    finally:
        wan.down(name)


def path_cpu_s(name: str) -> float:
    """Processor time of a path's process so far: user and system, which includes the receiving stack's part."""
    recorded = wan.find(name).process
    assert recorded is not None, "a path that is found has a process"
    text = Path(f"/proc/{recorded.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def congestion_controls() -> list[str]:
    """Those of CUBIC and BBR that this kernel has."""
    there = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    return [name for name in ("cubic", "bbr") if name in there]


def missing() -> list[str]:
    """Peers that are not installed."""
    return [name for name in ("iperf3", "rsync", "rclone") if shutil.which(name) is None]


def iperf3(
    name: str,
    seconds: float,
    *,
    congestion: str = "cubic",
    omit_s: int = 0,
    back: bool = False,
    to: str = RIGHT,
    port: int = IPERF_PORT,
) -> Carried:
    """One TCP flow from left to right (or `back`), what the receiver got. Flows at the same time need ports of their own."""
    words = ["iperf3", "-c", to, "-J", "-t", f"{seconds:g}", "-O", str(omit_s), "-C", congestion]
    answer = _iperf3(name, [*words, *(["-R"] if back else [])], seconds + omit_s, port)
    return _from_iperf(answer, answer["found"]["end"]["sum_received"], {"congestion": congestion, "retransmits": answer["found"]["end"]["sum_sent"].get("retransmits")})  # fmt: skip


def iperf3_udp(name: str, seconds: float, rate_bps: float, payload: int = 1472) -> Carried:
    """Datagrams at a rate, or as near to it as the sender comes: what was received."""
    words = [
        "iperf3",
        "-c",
        RIGHT,
        "-J",
        "-u",
        "-b",
        f"{rate_bps:.0f}",
        "-l",
        str(payload),
        "-t",
        f"{seconds:g}",
    ]
    answer = _iperf3(name, words, seconds, tries=UDP_TRIES)
    total = answer["found"]["end"]["sum"]
    got = total["packets"] - total["lost_packets"]
    received = {"bytes": got * payload, "seconds": total["seconds"]}
    return _from_iperf(answer, received, {"packets": total["packets"], "lost": total["lost_packets"]})


def _iperf3(
    name: str, words: list[str], seconds: float, port: int = IPERF_PORT, *, tries: int = 1
) -> dict[str, Any]:
    if shutil.which("iperf3") is None:
        raise BenchError("iperf3 is not installed: apt-get install iperf3")
    error = ""
    for _ in range(tries):
        with _serving(name, ["iperf3", "-s", "-1", "-p", str(port)], port):
            measured = _measured(name, [*words, "-p", str(port)], seconds * 2 + 60)
        found = json.loads(measured["out"] or "{}")
        if "error" not in found and "end" in found:
            return measured | {"found": found}
        error = found.get("error", measured["err"].strip() or "said nothing")
        if UDP_UNHEARD not in error:
            break
    raise BenchError(f"iperf3: {error}")


def _from_iperf(measured: dict[str, Any], received: Mapping[str, Any], details: Mapping[str, Any]) -> Carried:
    return Carried(
        payload_bytes=int(received["bytes"]),
        seconds=float(received["seconds"]),
        valid=measured["valid"],
        path_cpu_s=measured["path_cpu_s"],
        idle_pct=measured["idle_pct"],
        details=details,
    )


@functools.cache
def quic_program() -> Path | None:
    """`bench/quic`, compiled when first asked for; None where there is no Rust to compile it with."""
    if shutil.which("cargo") is None:
        return None
    source = Path(__file__).parent / "quic"
    target = source.parents[1] / "target" / "quic-peer"
    done = subprocess.run(
        ["cargo", "build", "--release", "--locked", "--manifest-path", str(source / "Cargo.toml"), "--target-dir", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"bench/quic does not compile: {done.stderr.strip()[-300:]}")
    return target / "release" / "quic-peer"


def quic(name: str, seconds: float, *, omit_s: float = 0) -> Carried:
    """One stream over QUIC from left to right, what the receiver got after the first seconds: quinn with CUBIC and wide windows."""
    program = quic_program()
    if program is None:
        raise BenchError("cargo is not installed, which compiles the QUIC peer: see https://rustup.rs")
    with tempfile.TemporaryDirectory(prefix="waystage-quic-") as folder:
        certificate = Path(folder, "certificate")
        to = f"{RIGHT}:{QUIC_PORT}"
        with _serving(name, [str(program), "serve", to, str(certificate)], certificate):
            words = [str(program), "send", to, str(certificate), f"{seconds:g}", f"{omit_s:g}"]
            measured = _measured(name, words, (seconds + omit_s) * 2 + 60)
    if measured["status"] != 0:
        raise BenchError(f"quic-peer: {measured['err'].strip()[:200] or measured['status']}")
    return _from_iperf(measured, json.loads(measured["out"]), {"congestion": "cubic"})


def rsync(name: str, tree: Path, copy: Path) -> Carried:
    """`rsync -a` of a tree at left into a daemon at right."""
    with tempfile.TemporaryDirectory(prefix="waystage-rsync-") as folder:
        conf = Path(folder, "rsyncd.conf")
        conf.write_text(
            f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n[to]\npath = {copy}\nread only = no\n"
        )
        daemon = ["rsync", "--daemon", "--no-detach", "--port", str(RSYNC_PORT), "--config", str(conf)]
        client = ["rsync", "-a", f"{tree}/", f"rsync://{RIGHT}:{RSYNC_PORT}/to/"]
        return _copied(name, tree, daemon, RSYNC_PORT, client)


def rclone(name: str, tree: Path, copy: Path) -> Carried:
    """`rclone copy` of a tree at left to a WebDAV server at right, with rclone's own defaults."""
    daemon = [
        "rclone",
        "serve",
        "webdav",
        "--config",
        "/dev/null",
        "--addr",
        f"{RIGHT}:{HTTP_PORT}",
        str(copy),
    ]
    remote = f":webdav,url='http://{RIGHT}:{HTTP_PORT}':"
    client = ["rclone", "copy", "--quiet", "--config", "/dev/null", str(tree), remote]
    return _copied(name, tree, daemon, HTTP_PORT, client)


PEERS: dict[str, Callable[[str, Path, Path], Carried]] = {"rsync": rsync, "rclone": rclone}


def _copied(name: str, tree: Path, daemon: list[str], port: int, client: list[str]) -> Carried:
    if shutil.which(client[0]) is None:
        raise BenchError(f"{client[0]} is not installed: apt-get install {client[0]}")
    payload = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    rate = wan.status(name)["directions"]["forward"]["rate_bps"]
    limit_s = PATIENCE * payload * 8 / rate + 60
    with _serving(name, daemon, port):
        try:
            measured = _measured(name, client, limit_s)
        except TooSlow:
            # Its rate is less than this; what the others did is not to be lost for it.
            return Carried(payload, limit_s, False, 0.0, 0.0, {"unfinished": True})
    if measured["status"] != 0:
        raise BenchError(f"{client[0]}: {measured['err'].strip()[:200] or measured['status']}")
    return Carried(
        payload_bytes=payload,
        seconds=measured["seconds"],
        valid=measured["valid"],
        path_cpu_s=measured["path_cpu_s"],
        idle_pct=measured["idle_pct"],
        details={},
    )


def _measured(name: str, client: list[str], limit_s: float) -> dict[str, Any]:
    """Run a program at left; what it said, and what it cost."""
    before_cpu, before = path_cpu_s(name), wan.status(name)
    with CpuWatch() as watch:
        began = time.monotonic()
        process = paths.start(name, "left", client, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise TooSlow(f"{client[0]} did not end within {limit_s:.0f} s") from None
        seconds = time.monotonic() - began
    after = wan.status(name)
    return {
        "status": process.returncode,
        "out": out,
        "err": err,
        "seconds": seconds,
        "path_cpu_s": path_cpu_s(name) - before_cpu,
        "idle_pct": round(watch.idle_pct, 1),
        "valid": valid_between(before, after),
    }


def wrong_between(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The share of packets, the worse of both directions, that were late or lost by this machine meanwhile."""
    worst = 0.0
    for way, now in after["directions"].items():
        then = before["directions"][way]
        wrong = sum(now[key] - then[key] for key in ("late", "read_late", "overflow"))
        worst = max(worst, wrong / max(now["in"] - then["in"], 1))
    return worst


def valid_between(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the path was quick enough between two statuses."""
    return wrong_between(before, after) <= 0.001


@contextlib.contextmanager
def _serving(name: str, argv: list[str], ready: int | Path) -> Iterator[None]:
    """A server at right, once it listens on a TCP port or has written a file, until the body ends."""
    with tempfile.TemporaryFile("w+") as said:
        process = paths.start(name, "right", argv, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        try:
            _await_ready(process, argv, ready, said)
            yield
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[Any], argv: list[str], ready: int | Path, said: Any) -> None:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        if ready.exists() if isinstance(ready, Path) else _listens(process.pid, ready):
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    said.seek(0)
    raise BenchError(f"{argv[0]} is not ready ({ready}): {said.read().strip()[-200:]}")


def _listens(pid: int, port: int) -> bool:
    """Look into the server's own /proc/net: a connection to try it would be the one that it serves."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()
            rows = [line.split() for line in lines[1:]]
            if any(row[1].endswith(wanted) and row[3] == "0A" for row in rows):
                return True
    return False
