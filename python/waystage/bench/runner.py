"""Finds `bench/NAME.py`, runs it, and describes the machine.

Arrives: a benchmark's name and how much of it to run.
Leaves: the result object.
Must not know: what a benchmark measures.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from waystage.bench.options import CTRL_C, BenchOptions, NoBenchmark, Stopped
from waystage.machine import CpuWatch, describe


def bench_dir() -> Path:
    """The folder of benchmarks: $WAYSTAGE_BENCH_DIR, else that of the checkout. Raises NoBenchmark."""
    given = os.environ.get("WAYSTAGE_BENCH_DIR")
    candidates = [Path(given)] if given else [Path.cwd() / "bench", Path(__file__).parents[3] / "bench"]
    for candidate in candidates:
        if any(candidate.glob("*.py")):
            return candidate
    folders = " or ".join(str(c) for c in candidates)
    raise NoBenchmark(f"no benchmark in {folders}: run from the repository, or set WAYSTAGE_BENCH_DIR")


def benchmarks() -> dict[str, str]:
    """Name -> one line of help, read without importing anything."""
    return {path.stem.replace("_", "-"): _first_line(path) for path in sorted(bench_dir().glob("[!_]*.py"))}


def durations(name: str) -> tuple[int, int] | None:
    """How long a run and a quick run take, in seconds: the benchmark's `TAKES_S`, or None where it has none."""
    return _seconds(name, "TAKES_S")


def least_durations(name: str) -> tuple[int, int] | None:
    """How long the smallest run and quick run take that give a figure: its `LEAST_S`, or None where it has none."""
    return _seconds(name, "LEAST_S")


def _seconds(name: str, constant: str) -> tuple[int, int] | None:
    """Seconds of a run and of a quick run, by a constant of the benchmark; nothing is imported."""
    try:
        tree = ast.parse(_path(name).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == constant:
                full, quick = ast.literal_eval(node.value)
                return int(full), int(quick)
    except (OSError, SyntaxError, UnicodeDecodeError, TypeError, ValueError):
        return None
    return None


def run_benchmark(name: str, options: BenchOptions) -> dict[str, Any]:
    """Run `bench/NAME.py`. Raises NoBenchmark where there is none, it takes no such input, or its answer is
    malformed.
    """
    path = _path(name)
    if name not in benchmarks():
        known = ", ".join(benchmarks())
        raise NoBenchmark(f"there is no benchmark {name!r}: choose one of {known}")
    function = _load(name, path, options)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with CpuWatch() as watch:
        try:
            answer = function(options)
        except (Stopped, KeyboardInterrupt):
            if not any(part.details()["turns"] for part in options.limit.parts):
                raise
            options.limit.stopped = options.limit.stopped or CTRL_C
            answer = _incomplete(options)
    _check(name, answer)
    machine = describe() | {
        "idle_pct": round(watch.idle_pct, 1),
        "lowest_idle_pct": round(watch.lowest_idle_pct, 1),
        "steal_pct": round(watch.steal_pct, 2),
        "short_of_cpu": watch.short_of_cpu,
    }
    return {
        "name": name,
        "figures": dict(answer["figures"]),
        "peers": dict(answer.get("peers", {})),
        "machine": machine,
        "details": dict(answer.get("details", {}))
        | ({"stopped": options.limit.stopped} if options.limit.stopped else {})
        | ({"missing": options.limit.missing} if options.limit.missing else {}),
    }


def _path(name: str) -> Path:
    return bench_dir() / f"{name.replace('-', '_')}.py"


def _incomplete(options: BenchOptions) -> dict[str, Any]:
    """The answer of a benchmark that ended before its figures could be derived: its complete turns."""
    measured = [part.details() for part in options.limit.parts]
    named = {f"part {n}": found for n, found in enumerate(measured, 1) if found["turns"]}
    return {"figures": {}, "details": {"valid": False} | named}


def load_module(path: Path) -> ModuleType:
    """Load a file of the folder of benchmarks as a new module. Raises NoBenchmark where it is not a Python file."""
    spec = importlib.util.spec_from_file_location(f"waystage_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise NoBenchmark(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # shared modules are beside the benchmarks
    spec.loader.exec_module(module)
    return module


def _load(name: str, path: Path, options: BenchOptions) -> Callable[[BenchOptions], Mapping[str, Any]]:
    module = load_module(path)
    for key in options.inputs:
        if key not in getattr(module, "INPUTS", ()):
            raise NoBenchmark(f"benchmark {name} takes no --{key}")
    function = getattr(module, "run", None)
    if not callable(function):
        raise NoBenchmark(f"{path} has no function run(options)")
    return cast("Callable[[BenchOptions], Mapping[str, Any]]", function)


def _check(name: str, answer: object) -> None:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("figures"), Mapping):
        raise NoBenchmark(f"benchmark {name} gave no mapping with 'figures'")
    for key, value in answer["figures"].items():
        if not isinstance(value, int | float):
            raise NoBenchmark(f"benchmark {name}: figure {key} is {value!r}, which is no number")


def _first_line(path: Path) -> str:
    try:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return "(cannot be read)"
    return doc.splitlines()[0] if doc else ""
