"""Programs that a benchmark runs, and what they cost.

Arrives: a command line, or a piece of work.
Leaves: what the program printed; seconds of wall-clock and CPU time.
Must not know: what a benchmark measures.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from waystage.bench.options import BenchError


def installed(program: str, package: str | None = None) -> str:
    """The path of a program. Raises BenchError that names the Debian package to install."""
    found = shutil.which(program)
    if found is None:
        raise BenchError(f"{program} is not installed: apt-get install {package or program}")
    return found


def run_program(command: Sequence[object], **settings: Any) -> str:
    """Run a program to its end; returns its stdout. Raises BenchError with the end of its stderr where it fails."""
    words = [str(word) for word in command]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, capture_output=True, text=True, errors="replace", check=False, **settings
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip())[-300:] or "no output"
        raise BenchError(f"{Path(words[0]).name} ended with status {done.returncode}: {reason}")
    return done.stdout


def compile_c(source: Path, *options: object, into: Path, shared: bool = False) -> Path:
    """Compile a C program, or a library to load, with threads and at -O2; returns its path in the folder `into`.

    Raises BenchError where no compiler is installed, or with the end of what the compiler says.
    """
    output = into / (f"{source.stem}.so" if shared else source.stem)
    kind = ("-shared", "-fPIC") if shared else ()
    run_program([installed("cc", "gcc"), "-O2", "-pthread", *kind, "-o", output, source, *options])
    return output


def drop_caches() -> None:
    """Make the kernel forget what it read from disks, as root: /proc/sys/vm/drop_caches in proc(5)."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


_RUN = """
import runpy, sys
sys.path.append(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def own_process(file: str, *arguments: object) -> list[str]:
    """The command that runs a benchmark's file by itself; what is beside it can be imported.

    Its folder comes last on the module path: bench/copy.py has the name of a module of Python's.
    """
    path = Path(file).resolve()
    return [sys.executable, "-P", "-c", _RUN, str(path.parent), str(path), *map(str, arguments)]


def measure_apart(file: str, *arguments: object) -> Any:
    """The JSON that a benchmark's file prints when it runs in a process and memory by itself. Raises BenchError."""
    try:
        return json.loads(run_program(own_process(file, *arguments)))
    except BenchError as error:
        raise BenchError(f"{Path(file).stem} {' '.join(map(str, arguments))}: {error}") from None


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Returns {"seconds": wall-clock time, "cpu_s": user and system time of this process and its ended children}."""
    began, used = time.perf_counter(), _cpu_s()
    work()
    return {"seconds": time.perf_counter() - began, "cpu_s": _cpu_s() - used}


def timing(work: Callable[[], object]) -> Callable[[int], dict[str, float]]:
    """The contestant that does `work` in every turn, and is timed."""
    return lambda turn: timed(work)


def _cpu_s() -> float:
    own, children = (resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
