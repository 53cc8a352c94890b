"""How much faster four nodes copy and deduplicate than one, by the workers of a Dask scheduler.

Each node is a network namespace with one worker of one thread, whose tasks use 4 threads; scheduler and client are in a
fifth. The source is the emulated striped file system (docs/reference/pfs.md) in front of a folder, mounted anew before
each measurement; its servers have room for all nodes, so that a node is limited by the time that its requests wait, not
by this machine's two cores. Times are of the whole command: start, walk, tasks, directories, report.

`copy_x` and `dedup_x` are one worker's time over that of four, as ratios of medians. `wrong_bytes` are bytes of a copy by
four, one of which is killed with SIGKILL in the middle, that differ from the source, all bytes of missing files among
them. `ranks_copy_x` and `ranks_dedup_x` are one worker's time over that of four processes without a scheduler, which share
the work as mpirun and mpifileutils do: each a fixed share (`copy --files-from`, of a list made first; `dedup --rank N --ranks
4`, then `--merge`). `start_s` is a copy of an empty tree, which no number of nodes shortens: large data hides it, this tree
does not. A measurement is invalid if the emulation was late or less than a tenth of the processor time was left: then
machine or emulator were the limit.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _dask_nodes import NODES, Nodes, dask_nodes

from waystage.bench import BenchError, BenchOptions, take_turns
from waystage.worlds.lab import pfs

COPIED, COPIED_QUICK = 1024, 128
READ, READ_QUICK = 1792, 256
"""Files that are copied, and files that are read for a profile, those among them."""

BYTES = 64 << 10
FILES_A_DIRECTORY = 32
LEAST_IDLE_PCT = 10.0
THREADS = 4
TURNS = 3
KILL_S, KILL_QUICK_S = 4.0, 2.0

SHAPE = """
name: many-nodes
description: Servers with room for many nodes, and requests that wait.
targets: {count: 16, read_per_s: 4 GB, write_per_s: 4 GB, latency_ms: 15}
metadata:
  servers: 4
  messages_per_s: 100000
  latency_ms: {lookup: 8, open: 15, close: 8, layout: 1, readdir: 8, change: 8}
"""
PEERS = ("ranks_copy_4", "ranks_dedup_4")
TAKES_S = 240, 30


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise BenchError("namespaces and the emulated file system need root and /dev/fuse")
    copied, read = (COPIED_QUICK, READ_QUICK) if options.quick else (COPIED, READ)
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="waystage-nodes-")))
        make_tree(folder / "tree", copied, read)
        (folder / "shape.yaml").write_text(SHAPE)
        one = held.enter_context(dask_nodes(folder / "one", 1))
        four = held.enter_context(dask_nodes(folder / "four", NODES))
        bench = _Bench(folder, copied)
        contestants = {
            "start_4": lambda turn: bench.start(four),
            "start_1": lambda turn: bench.start(one),
            "copy_1": lambda turn: bench.copy(one),
            "copy_4": lambda turn: bench.copy(four),
            "dedup_1": lambda turn: bench.dedup(one),
            "dedup_4": lambda turn: bench.dedup(four),
            "ranks_copy_4": lambda turn: bench.ranks_copy(four),
            "ranks_dedup_4": lambda turn: bench.ranks_dedup(four),
        }
        bench.start(four)  # Workers import what tasks need once.
        bench.start(one)
        if options.quick:
            options.limit.missing += PEERS
            contestants = {name: one for name, one in contestants.items() if name not in PEERS}
        turns = take_turns(
            options, contestants, turns=TURNS, quick=1, least_idle_pct=LEAST_IDLE_PCT, invalid=_invalid
        )
        wrong, killed_s = bench.killed(four, KILL_QUICK_S if options.quick else KILL_S)

    def over(one: str, other: str) -> float:
        return round(turns.ratio(one, other, "seconds"), 2)

    return {
        "figures": {
            "copy_x": over("copy_1", "copy_4"),
            "dedup_x": over("dedup_1", "dedup_4"),
            "wrong_bytes": wrong,
        },
        "peers": {
            f"{peer.removesuffix('_4')}_x": over(peer.removeprefix("ranks_").replace("4", "1"), peer)
            for peer in PEERS
            if peer in turns.names
        },
        "details": turns.details()
        | {
            "files_copied": copied,
            "files_read": read,
            "file_bytes": BYTES,
            "start_s": round(turns.median("start_4", "seconds"), 2),
            "killed_copy_s": round(killed_s, 2),
        },
    }


def _invalid(figures: Any) -> str | None:
    return figures.get("emulation") or None


def make_tree(top: Path, copied: int, read: int) -> None:
    """Files of noise, of which every fourth repeats another: `copied` in the folder `copied`, others beside it."""
    noise = random.Random(1)
    repeated = [noise.randbytes(BYTES) for _ in range(8)]
    (top / "empty").mkdir(parents=True)
    for number in range(read):
        place = top / ("copied" if number < copied else "others")
        folder = place / f"d{number // FILES_A_DIRECTORY:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        content = repeated[number % 8] if number % 4 == 0 else noise.randbytes(BYTES)
        (folder / f"f{number:05d}").write_bytes(content)


class _Bench:
    def __init__(self, folder: Path, files: int) -> None:
        self._folder, self._files = folder, files

    def start(self, nodes: Nodes) -> dict[str, Any]:
        return self._copied(nodes, "empty", 0)

    def copy(self, nodes: Nodes) -> dict[str, Any]:
        return self._copied(nodes, "copied", self._files)

    def _copied(self, nodes: Nodes, name: str, files: int) -> dict[str, Any]:
        with self._mounted() as (source, figures), self._target(files) as target:
            words = ("copy", source / name, target, "--workers", THREADS, "--quiet")
            figures["seconds"] = nodes.waystage(*words, *nodes.options(self._folder))
        return figures

    @contextmanager
    def _target(self, files: int) -> Iterator[Path]:
        """A destination that has this number of files after the block."""
        target = self._folder / "copy"
        try:
            yield target
            if sum(1 for path in target.rglob("*") if path.is_file()) != files:
                raise BenchError("the copy lacks files")
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def ranks_copy(self, nodes: Nodes) -> dict[str, Any]:
        """A process in each namespace with every fourth name of a list, into a separate folder."""
        lists = [self._folder / f"names-{node}" for node in range(NODES)]
        with self._mounted() as (source, figures), self._target(self._files) as target:
            target.mkdir()
            top = source / "copied"
            began = time.perf_counter()
            names = sorted(str(path.relative_to(top)) for path in top.glob("*/*"))
            for node, listed in enumerate(lists):
                listed.write_text("".join(name + "\n" for name in names[node::NODES]))
            _all_end(
                nodes.start(
                    node, "copy", top, target / f"{node}", "--files-from", listed, "--workers", THREADS
                )
                for node, listed in enumerate(lists)
            )
            figures["seconds"] = time.perf_counter() - began
        return figures

    def dedup(self, nodes: Nodes) -> dict[str, Any]:
        with self._mounted() as (source, figures):
            words = ("dedup", source, "--workers", THREADS, *nodes.options(self._folder), "--quiet")
            figures["seconds"] = nodes.waystage(*words)
        return figures

    def ranks_dedup(self, nodes: Nodes) -> dict[str, Any]:
        """A rank in each namespace, as mpirun starts them, then the merge."""
        parts = self._folder / "parts"
        with self._mounted() as (source, figures):
            words = ("dedup", source, "--workers", THREADS, "--parts-in", parts, "--ranks", NODES)
            began = time.perf_counter()
            _all_end(nodes.start(node, *words, "--rank", node) for node in range(NODES))
            nodes.waystage("dedup", "--merge", parts, "--quiet")
            figures["seconds"] = time.perf_counter() - began
        shutil.rmtree(parts)
        return figures

    def killed(self, nodes: Nodes, after_s: float) -> tuple[int, float]:
        """Bytes that are wrong in a copy during which a worker is killed; its seconds."""
        target = self._folder / "copy"
        killer = threading.Timer(after_s, nodes.kill, (0,))
        with self._mounted() as (source, _):
            killer.start()
            words = ("copy", source / "copied", target, "--workers", THREADS, "--quiet")
            seconds = nodes.waystage(*words, *nodes.options(self._folder))
        killer.join()
        if nodes.alive() != NODES - 1:
            raise BenchError("no worker was killed during the copy")
        return wrong_bytes(self._folder / "tree" / "copied", target), seconds

    @contextmanager
    def _mounted(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        point = self._folder / "point"
        point.mkdir(exist_ok=True)
        made = pfs.mount(point, pfs.load(self._folder / "shape.yaml"), self._folder / "tree")
        figures: dict[str, Any] = {}
        try:
            yield point, figures
            figures["emulation"] = pfs.why_invalid(pfs.statistics(made)) or ""
        finally:
            pfs.unmount(point, force=True)


def _all_end(started: Iterable[subprocess.Popen[bytes]]) -> None:
    """Wait for processes of ranks, all of which have begun before the first is waited for. Raises BenchError."""
    codes = [rank.wait() for rank in [*started]]
    if any(codes):
        raise BenchError("a rank failed")


def wrong_bytes(source: Path, copy: Path) -> int:
    """Bytes of the source that the copy lacks or has otherwise."""
    wrong = 0
    for path in source.rglob("*"):
        if path.is_file():
            wanted, other = path.read_bytes(), copy / path.relative_to(source)
            found = other.read_bytes() if other.is_file() else b""
            if found != wanted:
                same = sum(a == b for a, b in zip(wanted, found, strict=False))
                wrong += max(len(wanted), len(found)) - same
    return wrong
