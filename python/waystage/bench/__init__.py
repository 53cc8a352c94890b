"""The harness of the benchmarks.

Arrives: a benchmark's name and how much of it to run.
Leaves: one object, {"name", "figures", "peers", "machine", "details"}.
Must not know: what a benchmark measures.

A benchmark is a file: `bench/sim_accuracy.py` is `waystage bench sim-accuracy`. Its function `run(options)` returns
`figures`, what Waystage promises; `peers`, what they are compared with, measured in the same run; and `details`. It
says only what it measures: it declares its contestants to `take_turns`, which alternates them, drops invalid
measurements and gives medians and intervals. `bench/_null.py` is the annotated template.

Benchmarks are in the repository and not in the wheel: they need the repository's experiments and a quiet machine.
"""

from __future__ import annotations

from waystage.bench.options import BenchError, BenchOptions, Limit, NoBenchmark, Stopped
from waystage.bench.programs import (
    compile_c,
    drop_caches,
    installed,
    measure_apart,
    own_process,
    run_program,
    timed,
    timing,
)
from waystage.bench.runner import benchmarks, durations, least_durations, load_module, run_benchmark
from waystage.bench.turns import Figures, TurnFailed, Turns, take_turns

__all__ = [
    "BenchError",
    "BenchOptions",
    "Figures",
    "Limit",
    "NoBenchmark",
    "Stopped",
    "TurnFailed",
    "Turns",
    "benchmarks",
    "compile_c",
    "drop_caches",
    "durations",
    "installed",
    "least_durations",
    "load_module",
    "measure_apart",
    "own_process",
    "run_benchmark",
    "run_program",
    "take_turns",
    "timed",
    "timing",
]
