"""A hundred kills of either end of a remote copy at a random moment, each followed by the same command.

A tree of large and small files crosses a path of 1 Gbit/s and 10 ms (`waystage lab wan`), that of `wan-loss`: data in
flight is lost when an end dies, and without a rate the benchmark would measure the speed of the machine. The client
or the server is killed with SIGKILL; a killed server is restarted, then the client with the same command. The path
itself counts what both runs sent, against what an undisturbed copy sends. `different_bytes` counts bytes of the
copies that differ from the source's, missing ones included; `resent_pct` is the median share that was sent twice;
`resume_s` the longest time from the second command until data flows again, the starts of Python and of a server
included. A copy that had ended before its kill is repeated.
"""

from __future__ import annotations

import filecmp
import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import _wan_copies as copies
from _wan_paths import ended, path, path_rate_bps
from wan_loss import properties

from waystage.bench import BenchOptions, Stopped
from waystage.stats import median
from waystage.worlds.lab import wan

KILLS, QUICK_KILLS = 100, 2
RTT_MS = 10
LARGE_FILES, LARGE_BYTES = 8, 64 << 20
SMALL_FILES, SMALL_BYTES = 2_000, 10_000
PATIENCE_S = 300.0
TAKES_S = 600, 25
LEAST_S = 30, 25


def run(options: BenchOptions) -> dict[str, Any]:
    kills = options.repetitions or (QUICK_KILLS if options.quick else KILLS)
    chance = random.Random(5)
    rows: list[dict[str, Any]] = []
    with path(properties(path_rate_bps(), RTT_MS, 0)) as where, copies.ends_of(where) as ends:
        tree = ends.near / "tree"
        _make(tree, chance)
        clean = ends.copy(str(tree), ends.there("clean"))
        shutil.rmtree(ends.far / "clean")
        whole, seconds = clean.trace.points[-1][1], clean.seconds
        with options.limit.interruptible():
            for _ in options.limit.steps(itertools.count()):
                if len(rows) == kills:
                    break
                who = "client" if len(rows) % 2 == 0 else "server"
                options.progress(f"kill {len(rows) + 1} of {kills}: the {who}", len(rows) / kills)
                row = _kill(ends, who, chance.uniform(0.1, 1.0) * seconds, whole)
                if row is not None:
                    rows.append(row)
    if not rows:
        raise Stopped(f"ended by {options.limit.stopped} before a copy was killed")
    return {
        "figures": {
            "different_bytes": sum(row["different_bytes"] for row in rows),
            "resent_pct": round(median([row["resent_pct"] for row in rows]), 2),
            "resume_s": round(max(row["resume_s"] for row in rows), 2),
        },
        "details": {
            "kills": len(rows),
            "tree_bytes": LARGE_FILES * LARGE_BYTES + SMALL_FILES * SMALL_BYTES,
            "undisturbed_s": round(seconds, 2),
            "resent_pct_by_victim": {
                who: round(median([row["resent_pct"] for row in rows if row["who"] == who] or [0.0]), 2)
                for who in ("client", "server")
            },
            "most_resent_pct": round(max(row["resent_pct"] for row in rows), 2),
            "median_resume_s": round(median([row["resume_s"] for row in rows]), 2),
            "runs": rows,
        },
    }


def _kill(ends: copies.Ends, who: str, after_s: float, whole: int) -> dict[str, Any] | None:
    """Kill one end after `after_s`, and copy again; None where the copy had ended before."""
    tree, copy = ends.near / "tree", ends.far / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    before = _sent(ends.name)
    process = ends.begin(str(tree), ends.there("copy"))
    time.sleep(after_s)
    if process.poll() is not None:
        process.communicate()
        return None
    victim = process if who == "client" else ends.server
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    if who == "server":
        ends.serve()
        ended(process)
    again = ends.copy(str(tree), ends.there("copy"), limit_s=PATIENCE_S)
    return {
        "who": who,
        "resent_pct": max(0.0, 100 * ((_sent(ends.name) - before) / whole - 1)),
        "resume_s": round(again.trace.first_s(), 3),
        "different_bytes": _different(tree, copy),
    }


def _sent(where: str) -> int:
    return int(wan.status(where)["directions"]["forward"]["out_bytes"])


def _different(one: Path, other: Path) -> int:
    """Bytes of files that differ, and of those that are at one end only."""
    names = {path.relative_to(top) for top in (one, other) for path in top.rglob("*") if path.is_file()}
    found = 0
    for name in names:
        present = [path / name for path in (one, other) if (path / name).is_file()]
        if len(present) < 2 or not filecmp.cmp(present[0], present[1], shallow=False):
            found += max(file.stat().st_size for file in present) or 1
    return found


def _make(tree: Path, chance: random.Random) -> None:
    tree.mkdir()
    for number in range(LARGE_FILES):
        copies.made_file(tree / f"large-{number}", LARGE_BYTES)
    (tree / "small").mkdir()
    for number in range(SMALL_FILES):
        (tree / "small" / f"{number:05}").write_bytes(chance.randbytes(SMALL_BYTES))
