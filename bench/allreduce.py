"""MPI_Allreduce of unmodified Open MPI on the lab, with `collective-paths` against ECMP and D-mod-K.

Section 3.4 of the dissertation: recursive doubling on 8 and 16 nodes, by message size; and Open MPI's own choice of
algorithm. Ranks are placed host by host (`block`) and on alternate edge switches (`cyclic`). The 8 hosts are on four
edge switches and two core switches, the 16 on four and four; all links of a topology have the same rate. It is so low
that links are what limits: at 200 Mbit/s the one thread of Open vSwitch is, and a collision of paths costs nothing
because packets come late anyway. ECMP has the seeds 0, 1, 2 by turns, the same seed for `collective-paths` in the same
turn. A call's time is the slowest rank's; a contestant's, its median over calls but the first, of small sizes but the
first 15. Sizes are OSU's, from 64 B on, in powers of four.

`best_reduction_8_pct`, `best_reduction_16_pct`: the largest reduction against ECMP of any case with that many hosts and
from 64 KiB on, as medians over turns: below, a call's time is that of processes that wake up.
`median_reduction_pct`: the median over all cases and sizes from 64 KiB. `worst_x_ecmp`: the largest ratio of medians of
any case and size, so that below 1 nothing became slower. `first_call_ms`: the longest first call of any rank, spent in
the library. `later_call_us`: the mean cost of a later call of two ranks of a host that poll over shared memory, as Open
MPI has it by default; `details.asleep_call_us` is that of the ranks above, which sleep while they wait, on two
processors for all, and find the cache full of others' data. Per-packet spraying is no peer: Open vSwitch's groups of
type select hash flows. A run that ends early has the 8 hosts alone where there is no time for the 16.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _mpi_times import figures_of, ranks

from waystage import mpi_paths
from waystage.bench import BenchError, BenchOptions, take_turns
from waystage.interconnect.generate import leaf_spine
from waystage.stats import median
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

SHAPES = {8: (4, 2, 2), 16: (4, 4, 4)}
"""Hosts: edge switches, hosts on each, core switches."""

LINK_BPS = {8: 50_000_000, 16: 20_000_000}

SIZES = {8: (64, 1024, 16_384, 65_536, 262_144, 1 << 20), 16: (64, 1024, 16_384, 65_536, 262_144)}
SIZES_QUICK = (65_536,)
FROM = 65_536
CALLS, CALLS_QUICK = 6, 3
SMALL_CALLS, SMALL_WARM_UP = 40, 15
"""Below FROM, where a call's time is that of processes that wake up and differs by more than the contestants do. As in
OSU's, the first calls do not count: the controller of the same two processors is at work then."""

TURNS, TURNS_QUICK = 3, 1
SEEDS = 3
TAKES_S = 700, 50
LEAST_S = 120, 50
LIMIT_S = 120
POLLING_CALLS, POLLING_BYTES = 20_000, 64
POLLING = ("--mca", "mpi_yield_when_idle", "0", "--mca", "btl", "vader,self")
POLICIES = ("collective-paths", "ecmp", "d-mod-k")
ALGORITHMS = {
    "recursive_doubling": ("coll_tuned_use_dynamic_rules", "1", "coll_tuned_allreduce_algorithm", "3")
}
SOURCE = Path(__file__).with_name("_allreduce.c")


def run(options: BenchOptions) -> dict[str, Any]:
    shapes = {8: SHAPES[8]} if options.quick else SHAPES
    rows: list[dict[str, Any]] = []
    stats: list[dict[str, Any]] = []
    polling: list[dict[str, Any]] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="waystage-allreduce-") as folder:
        program = Path(folder) / "allreduce"
        subprocess.run(["mpicc", "-O2", "-o", program, SOURCE], check=True)
        for hosts, left in options.limit.shares(shapes, "{} hosts".format):
            leaves, per_leaf, spines = shapes[hosts]
            rate = LINK_BPS[hosts]
            topology = leaf_spine(leaves, per_leaf, spines, storage_hosts=0, host_bps=rate, uplink_bps=rate)
            sizes = SIZES_QUICK if options.quick else SIZES[hosts]
            with Lab(f"allreduce{hosts}", topology) as lab:
                measured = _Measured(
                    lab, program, sizes, CALLS_QUICK if options.quick else CALLS, Path(folder)
                )
                contestants = {policy: _of(measured, policy) for policy in POLICIES}
                turns = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK, parts=left)
                rows += _cells(turns, hosts)
                stats += measured.stats
                polling = polling or measured.polling()
                details[f"{hosts}_hosts"] = turns.details()
    if not stats:
        raise BenchError("no rank reported what its calls cost")
    large = [row["reduction_pct"] for row in rows if row["bytes"] >= FROM]
    best = {
        hosts: max(row["reduction_pct"] for row in rows if row["hosts"] == hosts and row["bytes"] >= FROM)
        for hosts in sorted({row["hosts"] for row in rows})
    }
    return {
        "figures": {
            **{f"best_reduction_{hosts}_pct": round(value, 1) for hosts, value in best.items()},
            "median_reduction_pct": round(median(large), 1),
            "worst_x_ecmp": round(max(row["x_ecmp"] for row in rows), 3),
            "first_call_ms": round(max(s["first_max_ns"] for s in stats) / 1e6, 2),
            "later_call_us": _later_us(polling),
        },
        "peers": {
            "paper_best_reduction_8_pct": 41,
            "paper_best_reduction_16_pct": 56,
            "d_mod_k_median_x": round(median([row["x_d_mod_k"] for row in rows if row["bytes"] >= FROM]), 3),
        },
        "details": {
            "cells": rows,
            "asleep_call_us": _later_us(stats),
            "unanswered_first_calls": sum(s["unanswered"] for s in stats),
            "link_bps": {str(hosts): LINK_BPS[hosts] for hosts in shapes},
            "asleep_calls_below_2_to_i_ns": _below(stats),
            "later_calls_below_2_to_i_ns": _below(polling),
            **details,
        },
    }


def _later_us(stats: list[dict[str, Any]]) -> float:
    spent_ns, calls = (float(sum(s[key] for s in stats)) for key in ("later_ns", "later"))
    return round(spent_ns / max(1.0, calls) / 1e3, 3)


def _below(stats: list[dict[str, Any]]) -> list[int]:
    return [sum(row) for row in zip(*(s["later_below"] for s in stats), strict=True)]


def _cells(turns: Any, hosts: int) -> list[dict[str, Any]]:
    """One row a case and size; ratios within a turn, so with the same seed, and their median over turns."""
    found = []
    by_turn = {policy: {row["turn"]: row for row in turns.rows(policy)} for policy in POLICIES}
    names = [name for name in next(iter(by_turn["ecmp"].values())) if "/" in name]
    for name in names:
        case, _, size = name.rpartition("/")
        ratios = {
            peer: median(
                [row[name] / by_turn[peer][turn][name] for turn, row in by_turn[POLICIES[0]].items()]
            )
            for peer in POLICIES[1:]
        }
        found.append(
            {
                "hosts": hosts,
                "case": case,
                "bytes": int(size),
                "x_ecmp": round(ratios["ecmp"], 3),
                "reduction_pct": 100 * (1 - ratios["ecmp"]),
                "x_d_mod_k": round(ratios["d-mod-k"], 3),
                "ecmp_ms": round(median([row[name] for row in by_turn["ecmp"].values()]) * 1e3, 2),
            }
        )
    return found


def _of(measured: _Measured, policy: str) -> Any:
    return lambda turn: measured(policy, turn % SEEDS)


class _Measured:
    """Runs every case under a policy; the program is the same with and without the preloaded library's policy."""

    def __init__(self, lab: Lab, program: Path, sizes: tuple[int, ...], calls: int, folder: Path) -> None:
        self._lab, self._program, self._sizes, self._calls, self._folder = lab, program, sizes, calls, folder
        self._runs = 0
        self._libraries = ":".join(map(str, mpi_paths.preloads()))
        self.stats: list[dict[str, Any]] = []

    def __call__(self, policy: str, seed: int) -> dict[str, float]:
        self._runs += 1
        chosen = policy if policy == "d-mod-k" else f"{policy}:seed={seed}"
        with self._controller(chosen, f"turn-{self._runs}"):
            found: dict[str, float] = {}
            for order in ("block", "cyclic"):
                for algorithm, choice in (
                    ("recursive_doubling", ALGORITHMS["recursive_doubling"]),
                    ("default", ()),
                ):
                    seconds = self._program_run(policy, ranks(self._lab.topology, order), choice)
                    for size, each in seconds.items():
                        warm_up = SMALL_WARM_UP if int(size) < FROM else 1
                        found[f"{order} {algorithm}/{size}"] = median(each[warm_up:])
            return found

    def polling(self) -> list[dict[str, Any]]:
        """What calls cost two ranks of one host that poll, each on its own processor."""
        with self._controller(POLICIES[0], "polling"):
            calls = ["--calls", str(POLLING_CALLS), str(POLLING_BYTES)]
            nodes = [self._lab.topology.hosts[0].name] * 2
            _, stats = self._run(POLICIES[0], nodes, list(POLLING), calls)
        return stats

    @contextmanager
    def _controller(self, policy: str, state: str) -> Iterator[None]:
        folder = self._lab.resources.controller / state
        controller = start_controller(self._lab, policy, ["--state-dir", str(folder)])
        try:
            yield
        finally:
            controller.terminate()
            controller.wait()

    def _program_run(self, policy: str, nodes: list[str], choice: tuple[str, ...]) -> dict[str, list[float]]:
        words: list[str] = []
        for at in range(0, len(choice), 2):
            words += ["--mca", *choice[at : at + 2]]
        calls = ["--calls", str(self._calls), "--small-calls", str(SMALL_CALLS)]
        seconds, stats = self._run(policy, nodes, words, [*calls, *map(str, self._sizes)])
        self.stats += stats
        return seconds

    def _run(
        self, policy: str, nodes: list[str], words: list[str], arguments: list[str]
    ) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
        """What the program prints, and what each rank says of its calls."""
        if policy == "collective-paths":
            variables = mpi_paths.environment_for() | {
                **mpi_paths.WATCH,
                "LD_PRELOAD": self._libraries,
                "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
                "WAYSTAGE_PATHS_STATS": str(self._folder / "stats"),
            }
            words += [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
        argv = [str(self._program), *arguments]
        found: dict[str, list[float]] = figures_of(self._lab, nodes, argv, words, LIMIT_S, policy)
        stats = []
        for file in self._folder.glob("stats.*"):
            stats.append(json.loads(file.read_text()))
            file.unlink()
        return found, stats
