"""How fast nothing is done to a buffer, against copying it.

This is the template of a benchmark: copy it to `bench/NAME.py` (a file whose name begins with an underscore is not
listed). The first line above is the one line that `waystage bench` lists. The text says what is measured against which
peers, what each figure means with its unit, and what makes a measurement invalid.

`x_copy` is how many times as fast as a copy of the buffer the work is, as the ratio of medians; `gb_per_s` is its rate.
"""

from __future__ import annotations

import random
from typing import Any

from waystage.bench import BenchError, BenchOptions, take_turns, timing

# The size is part of what a figure means, so it is a constant; a quick run takes seconds and asserts nothing.
SIZE, SIZE_QUICK = 64 << 20, 1 << 20
TURNS, TURNS_QUICK = 7, 2
# Seconds that a run and a quick run take; the harness prints them beforehand.
TAKES_S = 5, 2


def run(options: BenchOptions) -> dict[str, Any]:
    # Set up once, before the turns. What needs taking down goes into a `with` statement around the rest.
    size = SIZE_QUICK if options.quick else SIZE
    data = random.Random(1).randbytes(size)

    # Contestants by name, ours first. Each is a callable that takes the turn's number, measures
    # once and returns figures; `timing(work)` is one whose figures are seconds. A name may be a pair, (contestant,
    # case). A peer that may be missing is added only where it is installed; one that must be there:
    # `installed("rsync")`.
    turns = take_turns(
        options,
        {
            "waystage": timing(lambda: _whole(memoryview(data), size)),
            "copy": timing(lambda: _whole(bytearray(data), size)),
        },
        turns=TURNS,
        quick=TURNS_QUICK,
        warm_up=1,  # the first turn loads code and caches, and does not count
        least_idle_pct=0.0,  # more for a benchmark that needs a CPU to itself
        # invalid=lambda figures: "the path was late" if figures["late_pct"] > 0.1 else None,
    )

    # Derive what is promised. A ratio against a peer of the same run holds on other machines; an absolute value does
    # not. `details()` has every measurement, medians with intervals, and what was dropped.
    return {
        "figures": {
            "x_copy": round(turns.ratio("copy", "waystage", "seconds"), 3),
            "gb_per_s": round(size / turns.median("waystage", "seconds") / 1e9, 3),
        },
        "peers": {"copy_gb_per_s": round(size / turns.median("copy", "seconds") / 1e9, 3)},
        "details": turns.details() | {"bytes": size},
    }


def _whole(result: memoryview | bytearray, size: int) -> None:
    # Check the result of the work: a wrong one has no figure.
    if len(result) != size:
        raise BenchError(f"{len(result)} of {size} bytes were there")
