"""What `copy --compress` between hosts gains on text and costs on data that does not become shorter.

A tree of log lines and one of random bytes are copied with and without `--compress`, over a path of 100 Mbit/s and 10
ms (`waystage lab wan`, as root), where bytes are dear, and over the loopback interface, where they are not, from memory
to memory by complete commands. The peer is `rsync -a`, with and without `-z`, over the same ways; its default is the
best method that both ends have. Every file is compared after it was copied.

`text_x_plain` is how many times as fast `--compress` makes the copy of text over the path, and `text_x_rsync_z` how many
times as fast as `rsync -z` it is there. `random_cost_pct` is how much longer `--compress` makes a copy of random bytes:
the worse of both ways. `loopback_text_x_plain` is reported: below 1 compression costs more than it saves.
"""

from __future__ import annotations

import filecmp
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import late, link, path

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError, BenchOptions, Figures, installed, take_turns

RATE_BPS, RTT_MS = 100e6, 10
PATH, LOOPBACK = "100 Mbit/s", "loopback"
BYTES, BYTES_QUICK = {PATH: 64 << 20, LOOPBACK: 256 << 20}, {PATH: 8 << 20, LOOPBACK: 16 << 20}
FILES = 16
TEXT_BYTES = 16 << 20
"""Of lines that differ; longer than what a compressor looks back."""

KINDS = ("text", "random")
LIMIT_S = 300.0
TURNS = 3
TAKES_S = 240, 15
HERE = "127.0.0.1"


def run(options: BenchOptions) -> dict[str, Any]:
    installed("rsync")
    sizes = BYTES_QUICK if options.quick else BYTES
    text = _lines(TEXT_BYTES)
    ways: dict[str, Callable[..., Figures]] = {LOOPBACK: _over_loopback}
    if os.geteuid() == 0:
        ways[PATH] = _over_path
    tools = [(tool, compress) for tool in ("waystage", "rsync") for compress in (False, True)]
    contestants = {
        (_name(tool, compress), f"{kind}, {way}"): partial(
            copy, tool, compress, text if kind == "text" else None, sizes[way]
        )
        for way, copy in ways.items()
        for kind in KINDS
        for tool, compress in tools
    }
    turns = take_turns(
        options,
        contestants,
        turns=TURNS,
        invalid=late,
        case=lambda name: name[1],
        quick_cases=(f"text, {list(ways)[-1]}", f"random, {LOOPBACK}"),
    )

    ours, plain, theirs = "waystage --compress", "waystage", "rsync -z"

    def times(worse: str, case: str) -> float:
        return round(turns.ratio((worse, case), (ours, case), "seconds"), 3)

    def cost_pct() -> float:
        random = [f"random, {way}" for way in ways if f"random, {way}" not in turns.missing]
        return round(
            max(100 * (1 / turns.ratio((plain, case), (ours, case), "seconds") - 1) for case in random), 1
        )

    figures = {"loopback_text_x_plain": lambda: times(plain, f"text, {LOOPBACK}")}
    if PATH in ways:
        figures["text_x_plain"] = lambda: times(plain, f"text, {PATH}")
        figures["text_x_rsync_z"] = lambda: times(theirs, f"text, {PATH}")
    return {
        "figures": options.limit.known(figures | {"random_cost_pct": cost_pct}),
        "peers": {
            f"{who}, {case}, MB/s": round(turns.median((who, case), "bytes_per_s") / 1e6, 1)
            for who, case in contestants
            if who.startswith("rsync") and case not in turns.missing
        },
        "details": turns.details()
        | {
            "mb_per_s": {
                f"{who}, {case}": round(turns.median((who, case), "bytes_per_s") / 1e6, 1)
                for who, case in contestants
                if case not in turns.missing
            },
            "bytes": sizes,
            "files": FILES,
        },
    }


def _name(tool: str, compress: bool) -> str:
    return f"{tool} {'--compress' if tool == 'waystage' else '-z'}" if compress else tool


def _over_path(tool: str, compress: bool, text: bytes | None, size: int, turn: int) -> Figures:
    with path(link(RATE_BPS, RTT_MS), turn + 1) as where, copies.ends_of(where) as ends:
        tree, copy = ends.near / "tree", ends.far / "copy"
        _make(tree, text, size)
        if tool == "rsync":
            copy.mkdir()
            carried = peers.rsync(where, tree, copy, options=("-z",) if compress else ())
            found = {**carried.figures(), "seconds": carried.seconds}
        else:
            done = ends.copy(str(tree), ends.there("copy"), more=("--compress",) if compress else ())
            found = {"seconds": done.seconds, "wrong_share": done.wrong_share}
        _check(tree, copy)
    return found | {"bytes_per_s": size / found["seconds"]}


def _over_loopback(tool: str, compress: bool, text: bytes | None, size: int, turn: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="waystage-compress-", dir=copies.MEMORY) as name:
        folder = Path(name)
        tree, copy = folder / "tree", folder / "far" / "copy"
        _make(tree, text, size)
        copy.parent.mkdir()
        if tool == "rsync":
            copy.mkdir()
            seconds = _rsync_here(folder, tree, copy, ("-z",) if compress else ())
        else:
            seconds = _waystage_here(folder, tree, copy, ("--compress",) if compress else ())
        _check(tree, copy)
    return {"seconds": seconds, "bytes_per_s": size / seconds}


def _waystage_here(folder: Path, tree: Path, copy: Path, more: tuple[str, ...]) -> float:
    wan_make_key(folder / "server.key")
    client = wan_make_key(folder / "client.key")
    ready = folder / "ready"
    (folder / "serve.toml").write_text(
        f'listen = "{HERE}:{copies.PORT}"\nkey = "server.key"\nlog = "serve.log"\n'
        f'[[root]]\npath = "{copy.parent}"\nwrite = true\n[users.bench]\nkeys = ["{client}"]\n'
        + ('account = "root"\n' if os.geteuid() == 0 else ""),
        encoding="utf-8",
    )
    serve = [*copies.WAYSTAGE, "serve", "--config", str(folder / "serve.toml"), "--ready-file", str(ready)]
    keys = [
        "--identity",
        str(folder / "client.key"),
        "--server-key",
        wan_read_key(folder / "server.key"),
    ]
    client_words = ["copy", str(tree), f"{HERE}:{copy}", "--port", str(copies.PORT), "--quiet", *keys, *more]
    return _timed_beside(serve, ready.exists, [*copies.WAYSTAGE, *client_words])


def _rsync_here(folder: Path, tree: Path, copy: Path, options: tuple[str, ...]) -> float:
    conf = peers.rsync_daemon_file(folder, copy)
    daemon = ["rsync", "--daemon", "--no-detach", f"--address={HERE}"]
    daemon += ["--port", str(peers.RSYNC_PORT), "--config", str(conf)]
    there = f"rsync://{HERE}:{peers.RSYNC_PORT}/to/"

    def listens() -> bool:
        asked = subprocess.run(["rsync", there], capture_output=True, timeout=LIMIT_S, check=False)
        return asked.returncode == 0

    return _timed_beside(daemon, listens, ["rsync", "-a", *options, f"{tree}/", there])


def _timed_beside(server: list[str], ready: Callable[[], bool], client: list[str]) -> float:
    """Seconds that the client takes beside the server."""
    process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{' '.join(server[:5])} is not ready")
            time.sleep(0.05)
        began = time.monotonic()
        ran = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        seconds = time.monotonic() - began
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if ran.returncode != 0:
        raise BenchError(f"{client[0]}: {ran.stderr.strip()[-300:] or ran.returncode}")
    return seconds


def _make(tree: Path, text: bytes | None, size: int) -> None:
    """Files of text, each from another place of it, or of random bytes."""
    tree.mkdir()
    each = size // FILES
    for number in range(FILES):
        file = tree / f"{number:02}"
        if text is None:
            copies.made_file(file, each)
            continue
        start = number * len(text) // FILES
        with open(file, "wb") as output:
            left = each
            while left:
                piece = text[start : start + left]
                output.write(piece)
                left -= len(piece)
                start = 0


def _lines(size: int) -> bytes:
    """Log lines with times, hosts, sizes and addresses."""
    draw = random.Random(1)
    events = ("opened", "closed", "read", "wrote", "renamed", "removed", "timed out on", "retried")
    lines, length, at = [], 0, 1_700_000_000.0
    while length < size:
        at += draw.expovariate(50)
        line = (
            f"{at:.6f} node{draw.randrange(512):03d} fs[{draw.randrange(1000, 65000)}]: client 10.{draw.randrange(4)}."
            f"{draw.randrange(256)}.{draw.randrange(256)} {draw.choice(events)} /scratch/project{draw.randrange(40)}/"
            f"run-{draw.randrange(10_000):05d}/part.{draw.randrange(512)} bytes={draw.randrange(1 << 24)}\n"
        )
        lines.append(line)
        length += len(line)
    return "".join(lines).encode()[:size]


def _check(tree: Path, copy: Path) -> None:
    names = [f"{number:02}" for number in range(FILES)]
    same, _, _ = filecmp.cmpfiles(tree, copy, names, shallow=False)
    if len(same) != FILES:
        raise BenchError(f"{FILES - len(same)} of {FILES} files differ")
