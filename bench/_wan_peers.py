"""Peers measured over an emulated path: TCP by iperf3, QUIC by quinn, rsync, rclone. Used by the wide-area benchmarks.

Every peer runs unchanged at the ends of a path of `waystage lab wan`. Rates are of payload, in bits a second.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _wan_paths import RIGHT, Ended, TooSlow, run_left, serving

from waystage.bench import BenchError, Figures, installed, run_program
from waystage.worlds.lab import wan

IPERF_PORT, RSYNC_PORT, HTTP_PORT, QUIC_PORT, UDT_PORT = 5201, 8730, 8731, 8732, 8733
UDT_CONNECTS_S = 1.0
UDP_TRIES = 8
UDP_UNHEARD = "unable to read from stream socket"
"""iperf3 begins a UDP test with one datagram each way and repeats neither: where 5 % are lost each way, one test in ten
fails so.
"""
PATIENCE = 20.0
"""A peer gets this many times the seconds that the path's rate alone would take, and a minute."""


@dataclass(frozen=True)
class Carried:
    """What a peer moved, and what the path did meanwhile."""

    payload_bytes: int
    seconds: float
    ran: Ended | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate_bps(self) -> float:
        return 8 * self.payload_bytes / self.seconds if self.seconds > 0 else 0.0

    def figures(self) -> Figures:
        wrong = {} if self.ran is None else {"wrong_share": self.ran.wrong_share}
        return {"rate_bps": self.rate_bps, **wrong, **self.details}


def congestion_controls() -> list[str]:
    """Those of CUBIC and BBR that this kernel has."""
    there = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    return [name for name in ("cubic", "bbr") if name in there]


def iperf3(
    name: str,
    seconds: float,
    *,
    congestion: str = "cubic",
    omit_s: float = 0,
    to: str = RIGHT,
    port: int = IPERF_PORT,
    limit_s: float | None = None,
) -> Carried:
    """One TCP flow from left to right: what the receiver got. Concurrent flows need different ports.

    Raises TooSlow where it has not ended after `limit_s`, which is twice its time and a minute where not given.
    """
    words = ["iperf3", "-c", to, "-J", "-t", f"{seconds:g}", "-O", str(round(omit_s)), "-C", congestion]
    ran, end = _iperf3(name, words, limit_s or (seconds + omit_s) * 2 + 60, port)
    received = end["sum_received"]
    details = {"congestion": congestion, "retransmits": end["sum_sent"].get("retransmits")}
    return Carried(int(received["bytes"]), float(received["seconds"]), ran, details)


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
    ran, end = _iperf3(name, words, seconds * 2 + 60, tries=UDP_TRIES)
    total = end["sum"]
    got = total["packets"] - total["lost_packets"]
    details = {"packets": total["packets"], "lost": total["lost_packets"]}
    return Carried(got * payload, float(total["seconds"]), ran, details)


def _iperf3(
    name: str, words: list[str], limit_s: float, port: int = IPERF_PORT, *, tries: int = 1
) -> tuple[Ended, dict[str, Any]]:
    installed("iperf3")
    error = ""
    for _ in range(tries):
        with serving(name, "right", ["iperf3", "-s", "-1", "-p", str(port)], port):
            ran = run_left(name, [*words, "-p", str(port)], limit_s)
        found = json.loads(ran.out or "{}")
        if "error" not in found and "end" in found:
            return ran, found["end"]
        error = found.get("error", ran.err.strip() or "no output")
        if UDP_UNHEARD not in error:
            break
    raise BenchError(f"iperf3: {error}")


@functools.cache
def quic_program() -> Path | None:
    """`bench/quic`, compiled when first asked for; None where there is no Rust to compile it with."""
    if shutil.which("cargo") is None:
        return None
    source = Path(__file__).parent / "quic"
    target = source.parents[1] / "target" / "quic-peer"
    manifest = ["--manifest-path", source / "Cargo.toml", "--target-dir", target]
    run_program(["cargo", "build", "--release", "--locked", *manifest])
    return target / "release" / "quic-peer"


def quic(name: str, seconds: float, *, omit_s: float = 0) -> Carried:
    """One QUIC stream from left to right, quinn with CUBIC and wide windows: what the receiver got after `omit_s`."""
    program = quic_program()
    if program is None:
        raise BenchError("cargo is not installed, which compiles the QUIC peer: see https://rustup.rs")
    with tempfile.TemporaryDirectory(prefix="waystage-quic-") as folder:
        certificate = Path(folder, "certificate")
        to = f"{RIGHT}:{QUIC_PORT}"
        with serving(name, "right", [str(program), "serve", to, str(certificate)], certificate):
            words = [str(program), "send", to, str(certificate), f"{seconds:g}", f"{omit_s:g}"]
            ran = run_left(name, words, (seconds + omit_s) * 2 + 60)
    _check("quic-peer", ran)
    received = json.loads(ran.out)
    return Carried(int(received["bytes"]), float(received["seconds"]), ran, {"congestion": "cubic"})


@functools.cache
def udt_program() -> Path | None:
    """`bench/udt_peer`, compiled when first asked for; None where Debian's libudt-dev is not installed."""
    if not Path("/usr/include/udt/udt.h").is_file():
        return None
    folder = Path(__file__).parents[1] / ".build"
    folder.mkdir(exist_ok=True)
    program = folder / "udt-peer"
    source = Path(__file__).parent / "udt_peer" / "stream.cpp"
    run_program([installed("g++"), "-std=c++17", "-O2", "-o", program, source, "-ludt", "-lpthread"])
    return program


def udt(name: str, seconds: float, *, omit_s: float = 0, limit_s: float) -> Carried:
    """One UDT stream from left to right: what the receiver got from `omit_s` after its first bytes on.

    Raises TooSlow where the receiver has no result after `limit_s`.
    """
    program = udt_program()
    if program is None:
        raise BenchError("UDT is not installed: apt-get install libudt-dev g++")
    with tempfile.TemporaryDirectory(prefix="waystage-udt-") as folder:
        ready, result = Path(folder, "ready"), Path(folder, "result")
        to = [RIGHT, str(UDT_PORT)]
        receive = [str(program), "receive", *to, str(ready), str(result), f"{omit_s:g}", f"{seconds:g}"]
        with serving(name, "right", receive, ready):
            # It goes on until the receiver has its seconds: connecting may take long where packets are lost.
            ran = run_left(
                name, [str(program), "send", *to, f"{omit_s + seconds + UDT_CONNECTS_S:g}"], limit_s
            )
            _check("udt-peer", ran)
            if not result.exists() or not (words := result.read_text(encoding="ascii").split()):
                raise TooSlow(f"udt-peer: no result within {limit_s:g} s")
    return Carried(int(words[0]), float(words[1]), ran)


def rsync(name: str, tree: Path, copy: Path, *, options: Sequence[str] = ()) -> Carried:
    """`rsync -a` of a tree at left into a daemon at right."""
    with tempfile.TemporaryDirectory(prefix="waystage-rsync-") as folder:
        conf = rsync_daemon_file(Path(folder), copy)
        daemon = ["rsync", "--daemon", "--no-detach", "--port", str(RSYNC_PORT), "--config", str(conf)]
        client = ["rsync", "-a", *options, f"{tree}/", f"rsync://{RIGHT}:{RSYNC_PORT}/to/"]
        return _copied(name, tree, daemon, RSYNC_PORT, client)


def rsync_daemon_file(folder: Path, copy: Path) -> Path:
    """The settings of a daemon whose module `to` is `copy`."""
    conf = folder / "rsyncd.conf"
    conf.write_text(
        f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n[to]\npath = {copy}\nread only = no\n"
    )
    return conf


def rclone(name: str, tree: Path, copy: Path) -> Carried:
    """`rclone copy` of a tree at left to a WebDAV server at right, with rclone's defaults."""
    settings = ["--config", "/dev/null"]
    daemon = ["rclone", "serve", "webdav", *settings, "--addr", f"{RIGHT}:{HTTP_PORT}", str(copy)]
    remote = f":webdav,url='http://{RIGHT}:{HTTP_PORT}':"
    return _copied(name, tree, daemon, HTTP_PORT, ["rclone", "copy", "--quiet", *settings, str(tree), remote])


PEERS: dict[str, Callable[[str, Path, Path], Carried]] = {"rsync": rsync, "rclone": rclone}


def tree_peers() -> list[str]:
    """Those of rsync and rclone that are installed."""
    return [name for name in PEERS if shutil.which(name) is not None]


def _copied(name: str, tree: Path, daemon: list[str], port: int, client: list[str]) -> Carried:
    payload = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    rate = wan.status(name)["directions"]["forward"]["rate_bps"]
    limit_s = PATIENCE * payload * 8 / rate + 60
    with serving(name, "right", daemon, port):
        try:
            ran = run_left(name, client, limit_s)
        except TooSlow:
            # The peer's rate is below this one; the rest of the run need not be lost for it.
            return Carried(payload, limit_s, details={"unfinished": True})
    _check(client[0], ran)
    return Carried(payload, ran.seconds, ran)


def _check(program: str, ran: Ended) -> None:
    if ran.status != 0:
        raise BenchError(f"{program}: {ran.err.strip()[:200] or ran.status}")
