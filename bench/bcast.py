"""MPI_Bcast of unmodified Open MPI on the lab, copied by switches, against every algorithm of its component `tuned`.

The 8 hosts are on four edge switches and two core switches, the 16 on four and four; all links have the same rate.
Ranks are placed host by host (`block`) and on alternate edge switches (`cyclic`). With load, every edge switch has
one more host, of storage, that sends a TCP stream to the next one's. All contestants have the same paths, by ECMP;
contestants are Open MPI's own choice (`default`) and its algorithms 1 to 9, in segments of 32 KiB. A call's time is
the slowest rank's after a barrier, with every byte checked; a contestant's, its median over the calls after the
first ones, in which `waystage mpi --multicast` measures both ways.

`best_8_x`, `best_16_x`: the largest ratio, over cases with load and from 64 KiB on, of the fastest algorithm's time to
ours; `best_x` is the smaller of both. `worst_x`: the smallest such ratio of any case; `worst_x_default`: the smallest
against Open MPI's own choice, which a program without Waystage has. `wrong_bytes`: at all ranks, over a link that loses
1 % of the packets each way, and in all other runs. Bars: `best_x` 2, `worst_x` 0.98, `wrong_bytes` 0. A case is an
order of ranks with or without load: a run that ends early has the first cases of all contestants, and names the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _mpi_times import figures_of, ranks

from waystage import mpi_multicast, mpi_paths
from waystage.bench import BenchOptions, Turns, take_turns
from waystage.interconnect.generate import leaf_spine
from waystage.stats import median
from waystage.worlds.lab import loss
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

LINK_BPS = 200_000_000
SHAPES = {8: (4, 2, 2), 16: (4, 4, 4)}
"""Hosts: edge switches, hosts on each, core switches."""

SIZES = (65_536, 262_144, 1 << 20)
SIZES_QUICK = (262_144,)
WARM_UP, CALLS, CALLS_QUICK = 6, 8, 4
TURNS, TURNS_QUICK = 3, 1
TAKES_S = 2400, 40
LEAST_S = 150, 40
LIMIT_S = 180
LOST = 0.01
SETTLES_S = 2.5
"""Until the rates of ports, which are counted each second, show the load."""

ALGORITHMS = {
    "basic_linear": 1,
    "chain": 2,
    "pipeline": 3,
    "split_binary_tree": 4,
    "binary_tree": 5,
    "binomial": 6,
    "knomial": 7,
    "scatter_allgather": 8,
    "scatter_allgather_ring": 9,
}
"""Numbers of --mca coll_tuned_bcast_algorithm (coll_tuned_bcast_decision.c)."""

SEGMENT = 32_768
"""Bytes; without it an algorithm that is named is not pipelined. Those that have no segments do not look at it."""

OURS, DEFAULT = "multicast", "default"
CONTESTANTS = (OURS, DEFAULT, *ALGORITHMS)
QUICK_ALGORITHMS = ("pipeline", "binomial", "scatter_allgather_ring")
"""One that forwards along a chain, one along a tree, one that scatters first."""

CASES = (("cyclic", "load"), ("block", "load"), ("block", "idle"), ("cyclic", "idle"))
"""In the order in which they are measured: those with load first, which `best_x` is about."""

SOURCE = Path(__file__).with_name("_bcast.c")
STREAM = """
import socket, sys
if len(sys.argv) == 1:
    server = socket.create_server(("", 7411))
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
else:
    data = bytes(1 << 18)
    while True:
        try:
            with socket.create_connection((sys.argv[1], 7411)) as connection:
                while True:
                    connection.sendall(data)
        except ConnectionRefusedError:
            pass
"""


def run(options: BenchOptions) -> dict[str, Any]:
    sizes = SIZES_QUICK if options.quick else SIZES
    shapes = {8: SHAPES[8]} if options.quick else SHAPES
    chosen = _chosen(options)
    rows: list[dict[str, Any]] = []
    details: dict[str, Any] = {}
    wrong, lossy = 0, {}
    with tempfile.TemporaryDirectory(prefix="waystage-bcast-") as folder:
        program = Path(folder) / "bcast"
        subprocess.run(["mpicc", "-O2", "-o", program, SOURCE], check=True)
        for hosts, left in options.limit.shares(shapes, "{} hosts".format):
            leaves, per_leaf, spines = shapes[hosts]
            topology = leaf_spine(
                leaves,
                per_leaf + 1,
                spines,
                storage_hosts=leaves,
                host_bps=LINK_BPS,
                uplink_bps=LINK_BPS,
            )
            with Lab(f"bcast{hosts}", topology) as lab:
                start_controller(lab, "multicast-trees")
                measured = _Measured(
                    lab, program, sizes, CALLS_QUICK if options.quick else CALLS, Path(folder)
                )
                contestants = {
                    (name, f"{hosts} hosts, {order} {load}"): _of(measured, name, order, load)
                    for order, load in CASES
                    for name in chosen
                }
                turns = take_turns(
                    options,
                    contestants,
                    turns=TURNS,
                    quick=TURNS_QUICK,
                    case=lambda name: name[1],
                    quick_cases=["8 hosts, " + " ".join(CASES[0])],
                    parts=left,
                )
                rows += _cells(turns, hosts)
                loss.lose(lab, topology.core_switches[0], topology.edge_switches[-1], LOST)
                loss.lose(lab, topology.core_switches[-1], topology.edge_switches[-1], LOST)
                lossy[f"{hosts}_hosts"] = measured.over_loss()
                wrong += measured.wrong
                details[f"{hosts}_hosts"] = turns.details()
    loaded = [row for row in rows if row["load"]]
    best = {
        hosts: max(row["x_best"] for row in loaded if row["hosts"] == hosts)
        for hosts in sorted({row["hosts"] for row in loaded})
    }
    return {
        "figures": {
            "best_x": round(min(best.values()), 2),
            **{f"best_{hosts}_x": round(value, 2) for hosts, value in best.items()},
            "worst_x": round(min(row["x_best"] for row in rows), 3),
            "worst_x_default": round(min(row["x_default"] for row in rows), 3),
            "wrong_bytes": wrong,
        },
        "peers": {"median_x_default": round(median([row["x_default"] for row in rows]), 2)},
        "details": {"cells": rows, "over_loss": lossy, "link_bps": LINK_BPS, **details},
    }


def _chosen(options: BenchOptions) -> tuple[str, ...]:
    """The contestants of a run; those that a quick one leaves out are missing."""
    if not options.quick:
        return CONTESTANTS
    options.limit.missing += [name for name in ALGORITHMS if name not in QUICK_ALGORITHMS]
    return (OURS, DEFAULT, *QUICK_ALGORITHMS)


def _cells(turns: Turns, hosts: int) -> list[dict[str, Any]]:
    """One row a case and size, of medians over turns."""
    found = []
    for case in [case for case in turns.cases if case not in turns.missing]:
        order, load = case.split()[-2:]
        measured = [who for who in CONTESTANTS if (who, case) in turns.names]
        for size in [key for key in turns.rows((OURS, case))[0] if key.isdigit()]:
            seconds = {who: turns.median((who, case), size) for who in measured}
            fastest = min((who for who in measured if who in ALGORITHMS), key=lambda who: seconds[who])
            found.append(
                {
                    "hosts": hosts,
                    "order": order,
                    "load": load == "load",
                    "bytes": int(size),
                    "ours_ms": round(1e3 * seconds[OURS], 2),
                    "fastest": fastest,
                    "x_best": seconds[fastest] / seconds[OURS],
                    "x_default": seconds[DEFAULT] / seconds[OURS],
                }
            )
    return found


def _of(measured: _Measured, name: str, order: str, load: str) -> Any:
    return lambda turn: measured(name, order, load)


class _Measured:
    """Runs a case with a contestant."""

    def __init__(self, lab: Lab, program: Path, sizes: tuple[int, ...], calls: int, folder: Path) -> None:
        self._lab, self._program, self._sizes, self._calls, self._folder = lab, program, sizes, calls, folder
        self._component = mpi_multicast.build()
        self.wrong = 0

    def __call__(self, name: str, order: str, load: str) -> dict[str, float]:
        with _streams(self._lab) if load == "load" else _nothing():
            return {size: median(seconds[WARM_UP:]) for size, seconds in self._run(name, order).items()}

    def over_loss(self) -> dict[str, int]:
        """What all ranks counted; wrong bytes are added."""
        self._run(OURS, "cyclic", mode="always")
        counts: dict[str, int] = {}
        for file in self._folder.glob("stats.*"):
            for name, count in json.loads(file.read_text()).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def _run(self, name: str, order: str, mode: str = "on") -> dict[str, list[float]]:
        words: list[str] = []
        if name == OURS:
            variables = mpi_paths.environment_for() | mpi_multicast.environment_for(self._component)
            variables |= {
                "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
                "WAYSTAGE_MULTICAST": mode,
                "WAYSTAGE_MULTICAST_STATS": str(self._folder / "stats"),
            }
            words += [word for key in variables for word in ("-x", f"{key}={variables[key]}")]
        elif name != DEFAULT:
            words += ["--mca", "coll_tuned_use_dynamic_rules", "1"]
            words += ["--mca", "coll_tuned_bcast_algorithm", str(ALGORITHMS[name])]
            words += ["--mca", "coll_tuned_bcast_algorithm_segmentsize", str(SEGMENT)]
        argv = [str(self._program), "--calls", str(WARM_UP + self._calls), *map(str, self._sizes)]
        nodes = ranks(self._lab.topology, order)
        found = figures_of(self._lab, nodes, argv, words, LIMIT_S, name)
        self.wrong += found.pop("wrong")
        return found


@contextmanager
def _streams(lab: Lab) -> Iterator[None]:
    """From each edge switch's storage host to the next one's."""
    topology = lab.topology
    hosts = [
        host
        for edge in topology.edge_switches
        for host in topology.hosts_at[edge]
        if topology.host_by_name[host].role == "storage"
    ]
    running = []
    try:
        for at, host in enumerate(hosts):
            for where, arguments in ((hosts[at - 1], []), (host, [lab.host_ip(hosts[at - 1])])):
                enter, environment = lab.enter(where)
                words = [*enter, sys.executable, "-c", STREAM, *arguments]
                running.append(subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL))
        time.sleep(SETTLES_S)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def _nothing() -> Iterator[None]:
    yield
