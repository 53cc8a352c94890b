"""How long a command takes to print its help, against Python's own start and another tool's.

`waystage --help` and `waystage copy --help` in turns with the start of the same interpreter that does nothing (`python -c
pass`) and, where it is installed, `rclone version`. `help_x_python` and `copy_help_x_python` are ratios of medians; a turn
starts each program several times, one after the other, with a warm page cache. `rclone_x_python` is for comparison.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, BenchOptions, Figures, take_turns

TURNS, TURNS_QUICK = 15, 3
STARTS = 10
TAKES_S = 40, 8


def run(options: BenchOptions) -> dict[str, Any]:
    waystage = Path(sysconfig.get_path("scripts")) / "waystage"
    if not waystage.exists():
        raise BenchError(f"{waystage} is missing: install Waystage with 'make build'")
    programs = {
        "python": [sys.executable, "-c", "pass"],
        "help": [str(waystage), "--help"],
        "copy_help": [str(waystage), "copy", "--help"],
    }
    if rclone := shutil.which("rclone"):
        programs["rclone"] = [rclone, "version"]
    contestants = {name: _starting(command) for name, command in programs.items()}
    turns = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK, warm_up=1, least_idle_pct=5.0)
    others = [name for name in programs if name != "python"]
    ratios = {f"{name}_x_python": round(turns.ratio(name, "python", "seconds"), 2) for name in others}
    return {
        "figures": {key: value for key, value in ratios.items() if not key.startswith("rclone")},
        "peers": {key: value for key, value in ratios.items() if key.startswith("rclone")}
        | {"python_ms": round(1000 * turns.median("python", "seconds"), 1)},
        "details": turns.details(),
    }


def _starting(command: list[str]) -> Any:
    # Compiled modules are kept, as those of an installed wheel are.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def measure(turn: int) -> Figures:
        began = time.perf_counter()
        for _ in range(STARTS):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
        return {"seconds": (time.perf_counter() - began) / STARTS}

    return measure
