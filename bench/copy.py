"""How fast `waystage copy` copies small and large files, against cp, rsync and rclone.

A tree of 100,000 files of 10 KB, and one of 10 files of 1 GB, are copied on the file system of the temporary folder (or
$WAYSTAGE_BENCH_TREE) by whole commands, each from its start to its end. All take turns; before each turn the former copy is
emptied and everything is written out. It is not removed before the end: for minutes after its removal ext4 does not give an
inode again, and whoever makes files meanwhile looks at each such inode (`recently_deleted`), up to 60 s of it for
100,000. Warm turns begin with the source in memory, cold ones with the kernel's
caches dropped. Figures are ratios of medians, warm; `details` has the cold ones and the time until all is on the disk.
Nobody is asked to force data out, as none of them does by default.

Ours keeps times, modes, owners, links and extended attributes, and gives files their names when they are whole. `cp -r`
keeps none of them and writes under the final name; it is a peer nevertheless. `verified_x_best` is the slower of both sizes.

$WAYSTAGE_BENCH_COPY_SCALE, from 0 to 1, makes both trees smaller where the disk holds no more, and `details` says so.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, BenchOptions
from waystage.stats import median

SMALL_FILES, SMALL_BYTES, SMALL_PER_DIRECTORY = 100_000, 10_000, 500
LARGE_FILES, LARGE_BYTES = 10, 1 << 30
QUICK_SCALE = 0.02
WARM_TURNS, COLD_TURNS = 5, 3
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PIECE = 1 << 20

PEERS = ("cp -r", "rsync", "rclone")


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("cold copies need the kernel's caches dropped, which only root may: run as root")
    missing = [program for program in ("rsync", "rclone") if shutil.which(program) is None]
    if missing:
        raise BenchError(f"peers are not installed: apt-get install {' '.join(missing)}")
    scale = QUICK_SCALE if options.quick else float(os.environ.get("WAYSTAGE_BENCH_COPY_SCALE", "1"))
    warm_turns = options.repetitions or (1 if options.quick else WARM_TURNS)
    cold_turns = min(warm_turns, COLD_TURNS)
    taken: dict[str, dict[str, dict[str, list[float]]]] = {}
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-copy-", dir=given) as folder:
        trees = {"small": Path(folder) / "small", "large": Path(folder) / "large"}
        make_small(trees["small"], round(SMALL_FILES * scale))
        make_large(trees["large"], max(PIECE, round(LARGE_BYTES * scale) // PIECE * PIECE))
        steps = 2 * (warm_turns + cold_turns)
        for tree in trees.values():
            for cold in (False, True):
                for turn in range(cold_turns if cold else warm_turns):
                    what = f"{tree.name}, {'cold' if cold else 'warm'}, turn {turn + 1}"
                    options.progress(what, 0.05 + 0.95 * len(_all(taken)) / (steps * 6))
                    _turn(
                        tree,
                        Path(folder) / f"{tree.name}-{'cold' if cold else 'warm'}-{turn}",
                        cold,
                        turn,
                        taken.setdefault(tree.name, {}),
                    )
            shutil.rmtree(tree)
    medians = {
        size: {
            name: {key: median(seconds) for key, seconds in keys.items()} for name, keys in by_name.items()
        }
        for size, by_name in taken.items()
    }
    best = {size: min(PEERS, key=lambda name: by[name]["warm"]) for size, by in medians.items()}
    ratio = {
        (size, name, key): min(medians[size][peer][key] for peer in PEERS) / medians[size][name][key]
        for size in medians
        for name in ("waystage", "waystage --verify")
        for key in ("warm", "cold")
    }
    verified = min(ratio[size, "waystage --verify", "warm"] for size in medians)
    return {
        "figures": {
            "small_x_best": round(ratio["small", "waystage", "warm"], 2),
            "large_x_best": round(ratio["large", "waystage", "warm"], 2),
            "verified_x_best": round(verified, 2),
        },
        "peers": {f"{size}_best": name for size, name in best.items()},
        "details": {
            "scale": scale,
            "small": {"files": round(SMALL_FILES * scale), "bytes_each": SMALL_BYTES},
            "large": {"files": LARGE_FILES, "bytes_each": round(LARGE_BYTES * scale) // PIECE * PIECE},
            "small_x_best_cold": round(ratio["small", "waystage", "cold"], 2),
            "large_x_best_cold": round(ratio["large", "waystage", "cold"], 2),
            "median_s": {size: {n: {k: round(v, 3) for k, v in ks.items()} for n, ks in by.items()} for size, by in medians.items()},
            "all_s": {size: {n: {k: [round(s, 3) for s in v] for k, v in ks.items()} for n, ks in by.items()} for size, by in taken.items()},
        },
    }  # fmt: skip


def commands(tree: Path, copy: Path) -> dict[str, list[str]]:
    """Everyone's command; `cp -a` is shown beside, since it keeps what ours keeps."""
    ours = [sys.executable, "-m", "waystage", "copy", str(tree), str(copy), "--quiet"]
    return {
        "waystage": ours,
        "cp -r": ["cp", "-r", str(tree), str(copy)],
        "rsync": ["rsync", "-a", f"{tree}/", f"{copy}/"],
        "waystage --verify": [*ours, "--verify"],
        "rclone": ["rclone", "copy", "--quiet", "--config", "/dev/null", str(tree), str(copy)],
        "cp -a": ["cp", "-a", str(tree), str(copy)],
    }


def _turn(tree: Path, copies: Path, cold: bool, turn: int, taken: dict[str, dict[str, list[float]]]) -> None:
    key = "cold" if cold else "warm"
    copies.mkdir()
    names = list(commands(tree, copies))
    # Who comes first in a turn meets what the turn before left, so that another one does each time.
    first = turn % len(names)
    for name in names[first:] + names[:first]:
        copy = copies / name
        command = commands(tree, copy)[name]
        os.sync()
        if cold:
            DROP_CACHES.write_text("3\n")
        else:
            _read(tree)
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        ended = time.monotonic()
        os.sync()
        on_disk = time.monotonic()
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
        keys = taken.setdefault(name, {})
        keys.setdefault(key, []).append(ended - began)
        keys.setdefault(f"{key}_on_disk", []).append(on_disk - began)
        if _size(copy) != _size(tree):
            raise BenchError(f"{name} copied {_size(copy)}, and the source has {_size(tree)} (files, bytes)")
        _empty(copy)


def _empty(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        for name in files:
            os.truncate(os.path.join(folder, name), 0)


def make_small(tree: Path, files: int) -> None:
    chance = random.Random(1)
    for number in range(files):
        folder = tree / f"{number // SMALL_PER_DIRECTORY:04}"
        if number % SMALL_PER_DIRECTORY == 0:
            folder.mkdir(parents=True)
        (folder / f"file-{number:06}.dat").write_bytes(chance.randbytes(SMALL_BYTES))


def make_large(tree: Path, size: int) -> None:
    chance = random.Random(2)
    tree.mkdir()
    for number in range(LARGE_FILES):
        with open(tree / f"{number}.dat", "wb") as file:
            for _ in range(size // PIECE):
                file.write(chance.randbytes(PIECE))


def _read(tree: Path) -> None:
    for path in tree.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(PIECE):
                    pass


def _size(tree: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _all(taken: dict[str, dict[str, dict[str, list[float]]]]) -> list[float]:
    return [
        s
        for by in taken.values()
        for keys in by.values()
        for key in ("warm", "cold")
        for s in keys.get(key, [])
    ]
