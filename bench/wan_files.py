"""Whether a copy's rate depends on how its bytes are cut into files: HCP's table, and a hundred thousand small files.

Trees of 1 x 3 GB, 2 GB, 1 GB, 10 x 100 MB, 100 x 10 MB, 1,000 x 1 MB are copied over a path of 10 ms (`waystage lab wan`) from memory to memory by whole commands, start
and end included; then 100,000 x 10 kB. Where the path has less than 1 Gbit/s (see `bench wan-loss`), sizes are less by as much, so that each takes as long;
numbers of files stay, but for the small ones, of which there are fewer. `spread_pct` is the distance of the slowest from the
quickest of the six, over the quickest; `tiny_fraction` the small files' payload as a part of what the path carries. rsync and rclone copy the tree of
1,000 files and the small ones over the same path.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers

from waystage.bench import BenchOptions
from waystage.stats import median

TURNS = 5
FULL_RATE_BPS = 1e9
TABLE = {
    "1 x 3 GB": (1, 3_000_000_000),
    "1 x 2 GB": (1, 2_000_000_000),
    "1 x 1 GB": (1, 1_000_000_000),
    "10 x 100 MB": (10, 100_000_000),
    "100 x 10 MB": (100, 10_000_000),
    "1,000 x 1 MB": (1_000, 1_000_000),
}
TINY = "100,000 x 10 kB"
TINY_FILES, TINY_BYTES = 100_000, 10_000
MANY = "1,000 x 1 MB"


def run(options: BenchOptions) -> dict[str, Any]:
    rate = copies.path_rate_bps()
    scale = rate / FULL_RATE_BPS * (0.05 if options.quick else 1.0)
    turns = options.repetitions or (1 if options.quick else TURNS)
    trees = {name: (files, round(size * scale)) for name, (files, size) in TABLE.items()}
    trees[TINY] = (round(TINY_FILES * scale), TINY_BYTES)
    others = [peer for peer in peers.PEERS if peer not in peers.missing()]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        who: {name: [] for name in trees} for who in ("waystage", *others)
    }
    done, steps = 0, turns * (len(trees) + 2 * len(others))
    for turn in range(turns):
        for name, (files, size) in trees.items():
            for who in ("waystage", *(others if name in (MANY, TINY) else ())):
                options.progress(f"{who}, {name}, turn {turn + 1}", done / steps)
                runs[who][name].append(_one(who, files, size, rate, turn))
                done += 1

    def middle(who: str, name: str) -> float:
        rows = runs[who][name]
        return median([one["rate_bps"] for one in rows if one["valid"]] or [one["rate_bps"] for one in rows])

    table = {name: middle("waystage", name) for name in TABLE}
    return {
        "figures": {
            "spread_pct": round(100 * (1 - min(table.values()) / max(table.values())), 1),
            "tiny_fraction": round(middle("waystage", TINY) / rate, 3),
        },
        "peers": {
            f"{who}, {name}": round(middle(who, name) / rate, 3) for who in others for name in (MANY, TINY)
        },
        "details": {
            "rate_bps": rate,
            "scale": scale,
            "turns": turns,
            "trees": {name: {"files": files, "bytes_each": size} for name, (files, size) in trees.items()},
            "fractions": {name: round(middle("waystage", name) / rate, 3) for name in trees},
            "runs": runs,
        },
    }


def _one(who: str, files: int, size: int, rate: float, seed: int) -> dict[str, Any]:
    path = {"rate": f"{rate / 1e6:g}Mbit", "delay": "5ms"}
    with peers.path(f"b{uuid.uuid4().hex[:8]}", path, seed + 1) as where, copies.ends_of(where) as ends:
        tree = ends.near / "tree"
        _make(tree, files, size)
        if who != "waystage":
            copy = ends.far / "copy"
            copy.mkdir()
            carried = peers.PEERS[who](where, tree, copy)
            row = {"rate_bps": carried.rate_bps, "valid": carried.valid, "idle_pct": carried.idle_pct}
            return {**row, **carried.details}
        done = ends.copy(str(tree), ends.there("copy"))
        shutil.rmtree(ends.far / "copy")
    return {
        "rate_bps": 8 * done.payload_bytes / done.seconds,
        # Without the command's own start and end.
        "steady_bps": 8 * done.payload_bytes / max(done.trace.last_s() - done.trace.first_s(), 1e-3),
        "valid": done.valid,
        "idle_pct": done.idle_pct,
        "limited_by": done.value["limited_by"],
    }


def _make(tree: Path, files: int, size: int) -> None:
    tree.mkdir()
    piece = os.urandom(min(size, 1 << 20))
    for number in range(files):
        if number % 1000 == 0:
            (tree / f"{number // 1000:03}").mkdir()
        path = tree / f"{number // 1000:03}" / f"{number:06}"
        if size > len(piece):
            copies.made_file(path, size)
        else:
            path.write_bytes(piece)
