"""How fast `waystage copy` copies small and large files, against cp, rsync, rclone and a bare loop of its system calls.

A tree of 100,000 files of 10 KB, and one of 10 files of 1 GB, are copied on the file system of the temporary folder (or
$WAYSTAGE_BENCH_TREE) by complete commands, from start to end. Before each command the previous copy is emptied and all
is written out. It is not removed before the end: for minutes after its removal ext4 does not reuse an inode, and
whatever creates files meanwhile checks each such inode (`recently_deleted`), for up to 60 s with 100,000. Warm turns
begin with the source in memory, cold ones with the kernel's caches dropped. Figures are ratios of medians, warm;
`details` has the cold ones and the time until all is on disk. No command forces data out, as none of them does by
default.

Ours keeps times, modes, owners, links and extended attributes, and renames files into place when they are complete.
`cp -r` keeps none of them and writes under the final name; it is a peer nevertheless, and `cp -a` is shown beside.
`verified_x_best` is the slower of both sizes. A size, warm or cold, is a case: a run that ends early has the cases that
come first, and names the others.

The floor is `_copy_floor.c`: the system calls that a copy of each file takes, by as many threads, without journal, checks
of paths, hashes and decisions. `small_x_floor` is its time over ours; `verify_x_floor` is that where each file is read
back, the lower of both sizes.

$WAYSTAGE_BENCH_COPY_SCALE, from 0 to 1, makes both trees smaller where the disk holds no more; it is in `details`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from waystage.bench import (
    BenchError,
    BenchOptions,
    Figures,
    compile_c,
    drop_caches,
    installed,
    run_program,
    take_turns,
)

SMALL_FILES, SMALL_BYTES, SMALL_PER_DIRECTORY = 100_000, 10_000, 500
LARGE_FILES, LARGE_BYTES = 10, 1 << 30
QUICK_SCALE = 0.02
WARM_TURNS, COLD_TURNS = 5, 3
CASES = (("small", "warm"), ("large", "warm"), ("small", "cold"), ("large", "cold"))
PIECE = 1 << 20

PEERS = ("cp -r", "rsync", "rclone")

FLOOR = Path(__file__).with_name("_copy_floor.c")
THREADS = min(16, 2 * len(os.sched_getaffinity(0)))
"""As many as `waystage copy` takes by itself."""
TAKES_S = 420, 15
LEAST_S = 90, 15


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("cold copies need the kernel's caches dropped, which only root may: run as root")
    for program, package in (("rsync", None), ("rclone", None), ("cc", "gcc")):
        installed(program, package)
    scale = QUICK_SCALE if options.quick else float(os.environ.get("WAYSTAGE_BENCH_COPY_SCALE", "1"))
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-copy-", dir=given) as folder:
        compile_c(FLOOR, into=Path(folder))
        trees = _Trees(Path(folder), scale)
        contestants = {
            (size, cache, name): partial(_one, name, trees, size, cache == "cold")
            for size, cache in CASES
            for name in commands(Path(folder), Path(folder))
        }
        turns = take_turns(
            options,
            contestants,
            turns=WARM_TURNS,
            at_most={", ".join(case): COLD_TURNS for case in CASES if case[1] == "cold"},
            case=lambda name: ", ".join(name[:2]),
            quick_cases=[", ".join(case) for case in CASES if case[1] == "warm"],
        )
    seconds = turns.medians("seconds")

    def times_best(size: str, name: str, cache: str = "warm") -> float:
        return min(seconds[size, cache, peer] for peer in PEERS) / seconds[size, cache, name]

    def times_floor(size: str, verified: str = "") -> float:
        return seconds[size, "warm", f"floor{verified}"] / seconds[size, "warm", f"waystage{verified}"]

    sizes = ("small", "large")
    known = options.limit.known
    return {
        "figures": known(
            {
                "small_x_best": lambda: round(times_best("small", "waystage"), 2),
                "large_x_best": lambda: round(times_best("large", "waystage"), 2),
                "verified_x_best": lambda: round(
                    min(times_best(size, "waystage --verify") for size in sizes), 2
                ),
                "small_x_floor": lambda: round(times_floor("small"), 2),
                "large_x_floor": lambda: round(times_floor("large"), 2),
                "verify_x_floor": lambda: round(min(times_floor(size, " --verify") for size in sizes), 2),
            }
        ),
        "peers": {
            f"{size}_best": min(PEERS, key=lambda name: seconds[size, "warm", name])
            for size in sizes
            if f"{size}, warm" not in turns.missing
        },
        "details": {
            "scale": scale,
            "small": {"files": trees.small_files, "bytes_each": SMALL_BYTES},
            "large": {"files": LARGE_FILES, "bytes_each": trees.large_bytes},
            **known(
                {
                    "small_x_best_cold": lambda: round(times_best("small", "waystage", "cold"), 2),
                    "large_x_best_cold": lambda: round(times_best("large", "waystage", "cold"), 2),
                }
            ),
            **turns.details(),
        },
    }


class _Trees:
    """The trees to copy, in `folder`; each is made when it is first asked for."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder = folder
        self.small_files = round(SMALL_FILES * scale)
        self.large_bytes = max(PIECE, round(LARGE_BYTES * scale) // PIECE * PIECE)

    def __call__(self, size: str) -> Path:
        tree = self.folder / size
        if not tree.exists() and size == "small":
            make_small(tree, self.small_files)
        elif not tree.exists():
            make_large(tree, self.large_bytes)
        return tree


def commands(tree: Path, copy: Path) -> dict[str, list[str]]:
    """The command of each; `cp -a` keeps what ours keeps."""
    floor = [f"{tree.parent}/{FLOOR.stem}", str(tree), str(copy), str(THREADS)]
    ours = [sys.executable, "-m", "waystage", "copy", str(tree), str(copy), "--quiet"]
    return {
        "waystage": ours,
        "cp -r": ["cp", "-r", str(tree), str(copy)],
        "rsync": ["rsync", "-a", f"{tree}/", f"{copy}/"],
        "waystage --verify": [*ours, "--verify"],
        "rclone": ["rclone", "copy", "--quiet", "--config", "/dev/null", str(tree), str(copy)],
        "cp -a": ["cp", "-a", str(tree), str(copy)],
        "floor": floor,
        "floor --verify": [*floor, "verify"],
    }


def _one(name: str, trees: _Trees, size: str, cold: bool, turn: int) -> Figures:
    tree = trees(size)
    copies = trees.folder / f"{size}-{'cold' if cold else 'warm'}"
    copies.mkdir(exist_ok=True)
    copy = copies / f"{turn} {name}"
    if cold:
        drop_caches()
    else:
        os.sync()
        _read(tree)
    began = time.monotonic()
    run_program(commands(tree, copy)[name])
    ended = time.monotonic()
    os.sync()
    on_disk = time.monotonic()
    if _size(copy) != _size(tree):
        raise BenchError(f"{name} copied {_size(copy)}, and the source has {_size(tree)} (files, bytes)")
    for file in _files(copy):
        os.truncate(file, 0)
    return {"seconds": ended - began, "on_disk_s": on_disk - began}


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


def _files(tree: Path) -> list[Path]:
    return [path for path in tree.rglob("*") if path.is_file()]


def _read(tree: Path) -> None:
    for path in _files(tree):
        with open(path, "rb", buffering=0) as file:
            while file.read(PIECE):
                pass


def _size(tree: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in _files(tree)]
    return len(sizes), sum(sizes)
