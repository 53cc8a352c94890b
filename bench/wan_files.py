"""Whether a copy's rate depends on how its bytes are cut into files: HCP's table, and a hundred thousand small files.

Trees of 1 x 3 GB, 2 GB, 1 GB, 10 x 100 MB, 100 x 10 MB and 1,000 x 1 MB are copied over a path of 10 ms (`waystage lab
wan`) from memory to memory by complete commands, start and end included; then 100,000 x 10 kB. On a path below 1 Gbit/s
(see `bench wan-loss`) sizes are smaller in proportion; the numbers of files stay, but for the small ones. `spread_pct`,
of at least two trees, is the distance of the slowest from the fastest of the six, over the fastest; `tiny_fraction` the
small files' payload as a part of what the path carries. The peers rsync and rclone copy the tree of 1,000 files and the
small ones over the same path. A run that ends early has the trees that come first, and names the others.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import _wan_copies as copies
import _wan_peers as peers
from _wan_paths import late, link, path, path_rate_bps

from waystage.bench import BenchOptions, Figures, take_turns

TURNS = 5
FULL_RATE_BPS = 1e9
TABLE = {
    "1 x 1 GB": (1, 1_000_000_000),
    "1,000 x 1 MB": (1_000, 1_000_000),
    "10 x 100 MB": (10, 100_000_000),
    "100 x 10 MB": (100, 10_000_000),
    "1 x 2 GB": (1, 2_000_000_000),
    "1 x 3 GB": (1, 3_000_000_000),
}
"""In the order in which they are measured: what differs most first, and what takes longest last."""

TINY = "100,000 x 10 kB"
TINY_FILES, TINY_BYTES = 100_000, 10_000
MANY = "1,000 x 1 MB"
TAKES_S = 1000, 40
LEAST_S = 30, 10


def run(options: BenchOptions) -> dict[str, Any]:
    rate = path_rate_bps()
    scale = rate / FULL_RATE_BPS * (0.05 if options.quick else 1.0)
    trees = {name: (files, round(size * scale)) for name, (files, size) in TABLE.items()}
    trees[TINY] = (round(TINY_FILES * scale), TINY_BYTES)
    theirs = [(peer, name) for peer in peers.tree_peers() for name in (MANY, TINY)]
    pairs = [*(("waystage", name) for name in trees), *theirs]
    contestants = {(who, name): partial(_one, who, *trees[name], rate) for who, name in pairs}
    turns = take_turns(
        options,
        contestants,
        turns=TURNS,
        invalid=late,
        case=lambda name: name[1],
        quick_cases=("1 x 1 GB", MANY, TINY),
    )
    fraction = {pair: turns.median(pair, "rate_bps") / rate for pair in turns.names}
    table = sorted(fraction["waystage", name] for name in TABLE if ("waystage", name) in fraction)
    spread = {"spread_pct": lambda: round(100 * (1 - table[0] / table[-1]), 1)} if len(table) > 1 else {}
    tiny = {"tiny_fraction": lambda: round(fraction["waystage", TINY], 3)}
    return {
        "figures": options.limit.known(spread | tiny),
        "peers": {
            f"{who}, {name}": round(fraction[who, name], 3) for who, name in theirs if (who, name) in fraction
        },
        "details": turns.details()
        | {
            "rate_bps": rate,
            "scale": scale,
            "trees": {name: {"files": files, "bytes_each": size} for name, (files, size) in trees.items()},
            "fractions": {
                name: round(fraction["waystage", name], 3) for name in trees if ("waystage", name) in fraction
            },
        },
    }


def _one(who: str, files: int, size: int, rate: float, turn: int) -> Figures:
    with path(link(rate, 10), turn + 1) as where, copies.ends_of(where) as ends:
        tree = ends.near / "tree"
        _make(tree, files, size)
        if who != "waystage":
            copy = ends.far / "copy"
            copy.mkdir()
            return peers.PEERS[who](where, tree, copy).figures()
        done = ends.copy(str(tree), ends.there("copy"))
        shutil.rmtree(ends.far / "copy")
    return {
        "rate_bps": 8 * done.payload_bytes / done.seconds,
        # Without the command's start and end.
        "steady_bps": 8 * done.payload_bytes / max(done.trace.last_s() - done.trace.first_s(), 1e-3),
        "wrong_share": done.wrong_share,
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
