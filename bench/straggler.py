"""How near the loader comes to the lower bound when two of 24 storage targets are four times slower.

The scheduler that the loader runs is run here in simulated time over emulated targets: the same code, no byte read,
the same answer on every machine. The bound is what no scheduler with as many loaders gets below: in a time t target i
needs on average at least the readers whose rate, made concave, gives its bytes in t, and there are no more
readers than loaders. Which targets are slow is not known beforehand. `makespan_ratio` is the largest over
several contention curves, numbers of loaders, ways of delivering and amounts of memory; the peers are the same
without stealing, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from _load_targets import CURVES, Service, files_on_targets, service
from numpy.typing import NDArray

from waystage._native import LoadFiles, choose_loaders, load_bound, simulate_load
from waystage.bench import BenchOptions
from waystage.native_options.loads import SimulatedLoadOptions

TARGETS = 24
SLOW_TARGETS = (5, 17)
SLOWER = 4.0
FILES = 4_800
FILES_QUICK = 1_200
FILE_BYTES = 4 << 20
PIECE_BYTES = 1 << 20
LOADERS_A_TARGET = (1, 2, 4)
MEMORY_BYTES = (256 << 20, 1 << 30)
SEEDS = 2
TAKES_S = 60, 15


def run(options: BenchOptions) -> dict[str, Any]:
    count = FILES_QUICK if options.quick else FILES
    seeds = 1 if options.quick else options.repetitions or SEEDS
    rows: list[dict[str, Any]] = []
    cases = list(_cases(seeds))
    for number, (name, each, way, memory_bytes, seed) in enumerate(cases):
        options.progress(f"{name}, {each} loaders a target, {way}", number / len(cases))
        rates = CURVES[name]
        files = files_on_targets(count, TARGETS, FILE_BYTES, stripes=1 if way != "striped" else 4, seed=seed)
        rows.append(_row(files, rates, name, each, way, memory_bytes, seed))
    free = [row for row in rows if row["deliver"] != "epoch"]
    worst = max(free, key=lambda row: row["ratio"])

    def in_order(memory_bytes: int) -> float:
        held = [row for row in rows if row["deliver"] == "epoch" and row["memory_mib"] == memory_bytes >> 20]
        return round(max(float(row["ratio"]) for row in held), 3)

    return {
        "figures": {"makespan_ratio": round(worst["ratio"], 4)},
        "peers": {"strict_makespan_ratio": round(max(row["strict_ratio"] for row in free), 3)}
        | {f"in_order_makespan_ratio_{size >> 20}_mib": in_order(size) for size in MEMORY_BYTES},
        "details": {"worst": worst, "rows": rows},
    }


def _cases(seeds: int) -> Iterator[tuple[str, int, str, int, int]]:
    for name in CURVES:
        for each in LOADERS_A_TARGET:
            for way in ("objects", "striped", "epoch"):
                for memory_bytes in MEMORY_BYTES:
                    for seed in range(seeds):
                        yield name, each, way, memory_bytes, seed


def _row(
    files: LoadFiles,
    rates: NDArray[np.float64],
    name: str,
    each: int,
    way: str,
    memory_bytes: int,
    seed: int,
) -> dict[str, Any]:
    services: list[Service] = [service(rates) for _ in range(TARGETS)]
    for slow in SLOW_TARGETS:
        services[slow] = service(rates / SLOWER)
    by_number = dict(zip(files.targets, files.bytes_by_target(), strict=True))
    ordered = [services[number] for number in files.targets]
    loaders = each * TARGETS
    # The curve is known, as after profile-targets; which targets are slow is not.
    best, _ = choose_loaders([(x, x * rates[0] / rates[x - 1]) for x in range(1, len(rates) + 1)])
    bound = load_bound([by_number[number] for number in files.targets], ordered, loaders)

    def makespan(steal: bool) -> float:
        outcome = simulate_load(
            files,
            ordered,
            SimulatedLoadOptions(
                whole_files=way != "objects",
                loaders=loaders,
                most_readers=best,
                in_order=way == "epoch",
                steal=steal,
                memory_bytes=memory_bytes,
                piece_bytes=PIECE_BYTES,
                seed=seed,
            ),
        )
        if outcome["bytes"] != sum(by_number.values()):
            raise RuntimeError("not every byte was read")
        return float(outcome["makespan_s"])

    steal = makespan(True)
    return {
        "curve": name,
        "loaders": loaders,
        "deliver": way,
        "memory_mib": memory_bytes >> 20,
        "seed": seed,
        "bound_s": round(bound, 3),
        "makespan_s": round(steal, 3),
        "ratio": steal / bound,
        "strict_ratio": makespan(False) / bound,
    }
