"""MPI_Allreduce of unmodified Open MPI whose ranks are scattered over edge switches, in another order of ranks.

On an oversubscribed fabric: edge switches have half as many uplinks as hosts, and all links have the same rate. So a
step whose messages all cross takes twice as long as one that stays under the edge switches, over any paths. Ranks
are on alternate edge switches (`cyclic`), or host by host (`block`), where no order is better. Algorithms: Open MPI's
own choice, Rabenseifner's for these sizes, and its ring. Both contestants have the policy `collective-paths` and the
hash's seeds 0, 1, 2 by turns; one has `waystage mpi --rank-order-floats`. A communicator changes its order in its third
large call, so that a case's time is the median of its calls from the fourth on. A call's time is the slowest rank's.

`cyclic_x`, `block_x`: times with another order over those without, within a turn; the median over cases and turns.
`worst_x`: of any case, as median over turns. `uplink_bytes_x`: bytes of all cyclic runs on links between switches, by the
switches' counters, as the same ratio; calls in the present order are among them. Bars: 0.8, 1.02, 1.05, 0.6.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from _mpi_times import figures_of, ranks

from waystage import mpi_paths
from waystage.bench import BenchOptions, Turns, take_turns
from waystage.interconnect.generate import leaf_spine
from waystage.stats import median
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

SHAPES = {8: (2, 4, 2), 16: (4, 4, 2)}
"""Hosts: edge switches, hosts on each, core switches."""

LINK_BPS = {8: 50_000_000, 16: 20_000_000}
SIZES = {8: (262_144, 1 << 20), 16: (131_072, 262_144)}
FROM_CALL = 3
CALLS = 9
TURNS, TURNS_QUICK = 3, 1
SEEDS = 3
TAKES_S = 280, 20
LIMIT_S = 120
POLICY = "collective-paths"
OURS, PRESENT = "another order", "present order"
ALGORITHMS = {
    "default": {},
    "ring": {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"},
}
SOURCE = Path(__file__).with_name("_allreduce.c")


def run(options: BenchOptions) -> dict[str, Any]:
    shapes = [8] if options.quick else list(SHAPES)
    algorithms = tuple(ALGORITHMS)[: 1 if options.quick else None]
    options.limit.missing += tuple(ALGORITHMS)[len(algorithms) :]
    turns: dict[int, Turns] = {}
    with tempfile.TemporaryDirectory(prefix="waystage-rank-order-") as folder:
        program = Path(folder) / "allreduce"
        subprocess.run(["mpicc", "-O2", "-o", program, SOURCE], check=True)
        for hosts, left in options.limit.shares(shapes, "{} hosts".format):
            leaves, per_leaf, spines = SHAPES[hosts]
            rate = LINK_BPS[hosts]
            topology = leaf_spine(leaves, per_leaf, spines, storage_hosts=0, host_bps=rate, uplink_bps=rate)
            with Lab(f"order{hosts}", topology) as lab:
                sizes = SIZES[hosts][: 1 if options.quick else None]
                measured = _Measured(lab, program, sizes, algorithms)
                contestants = {who: _of(measured, who) for who in (PRESENT, OURS)}
                turns[hosts] = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK, parts=left)
    rows = [row for hosts, found in turns.items() for row in _ratios(found, hosts)]
    times = [row for row in rows if row["unit"] == "s"]
    return {
        "figures": {
            "cyclic_x": round(median([row["x"] for row in times if row["case"].startswith("cyclic")]), 3),
            "block_x": round(median([row["x"] for row in times if row["case"].startswith("block")]), 3),
            "worst_x": round(max(row["x"] for row in times), 3),
            "uplink_bytes_x": round(median([row["x"] for row in rows if row["unit"] == "bytes"]), 3),
        },
        "peers": {},
        "details": {
            "cells": [row | {"x": round(row["x"], 3)} for row in rows],
            "link_bps": {str(hosts): LINK_BPS[hosts] for hosts in shapes},
            **{f"{hosts}_hosts": found.details() for hosts, found in turns.items()},
        },
    }


def _ratios(turns: Turns, hosts: int) -> list[dict[str, Any]]:
    """One row a case and size, and one a case of bytes; ratios within a turn, and their median over turns."""
    present = {row["turn"]: row for row in turns.rows(PRESENT)}
    ours = [row for row in turns.rows(OURS) if row["turn"] in present]
    found = []
    for name in [name for name in ours[0] if "/" in name]:
        case, _, what = name.rpartition("/")
        if what == "bytes" and not case.startswith("cyclic"):
            continue
        ratio = median([row[name] / present[row["turn"]][name] for row in ours])
        unit = {"unit": "bytes"} if what == "bytes" else {"unit": "s", "bytes": int(what)}
        found.append({"hosts": hosts, "case": case, "x": ratio} | unit)
    return found


def _of(measured: _Measured, who: str) -> Any:
    return lambda turn: measured(who, turn % SEEDS)


class _Measured:
    """Runs every case with or without another order of ranks."""

    def __init__(self, lab: Lab, program: Path, sizes: tuple[int, ...], algorithms: tuple[str, ...]) -> None:
        self._lab, self._program, self._sizes, self._algorithms = lab, program, sizes, algorithms
        self._runs = 0
        self._libraries = ":".join(map(str, mpi_paths.preloads()))

    def __call__(self, who: str, seed: int) -> dict[str, float]:
        self._runs += 1
        state = self._lab.resources.controller / f"turn-{self._runs}"
        controller = start_controller(self._lab, f"{POLICY}:seed={seed}", ["--state-dir", str(state)])
        try:
            found: dict[str, float] = {}
            for order in ("block", "cyclic"):
                for algorithm in self._algorithms:
                    before = self._between_switches()
                    nodes = ranks(self._lab.topology, order)
                    seconds: dict[str, list[float]] = self._program_run(who, nodes, ALGORITHMS[algorithm])
                    found[f"{order} {algorithm}/bytes"] = self._between_switches() - before
                    for size, each in seconds.items():
                        found[f"{order} {algorithm}/{size}"] = median(each[FROM_CALL:])
            return found
        finally:
            controller.terminate()
            controller.wait()

    def _between_switches(self) -> int:
        hosts = self._lab.topology.host_by_name
        links = [k for k in self._lab.links().links if not any(d.node in hosts for d in k.directions)]
        return sum(direction.bytes for link in links for direction in link.directions)

    def _program_run(self, who: str, nodes: list[str], choice: dict[str, str]) -> dict[str, list[float]]:
        variables = mpi_paths.environment_for(rank_order="floats" if who == OURS else None) | {
            **mpi_paths.WATCH,
            "LD_PRELOAD": self._libraries,
            "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
        }
        words = [word for name in choice for word in ("--mca", name, choice[name])]
        words += [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
        argv = [str(self._program), "--calls", str(CALLS), *map(str, self._sizes)]
        found: dict[str, list[float]] = figures_of(self._lab, nodes, argv, words, LIMIT_S, who)
        return found
