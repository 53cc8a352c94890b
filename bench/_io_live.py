"""S-IOR through `waystage mpi --io` under a live controller: eight nodes of one machine, each with an aggregator.

Arrives: a policy, when one aggregator is loaded. Leaves: seconds of each collective write. `_sior.c` is the program: it
computes between writes and keeps its file open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from waystage.bench import BenchError

NODES = "abcdefgh"
SLOW = "d"
DELAY_US = 400_000
"""A write of a few MiB of this machine takes tens of ms, of which one aggregator of eight is to make many times more."""

COMPUTE_S = 0.5
"""Between two writes: the load is read again every 250 ms."""


def writes(folder: Path, policy: str, size: int, count: int, load_after: int) -> list[float]:
    """Seconds of each of `count` writes of `size` bytes a rank; after `load_after` of them one aggregator is loaded."""
    folder.mkdir()
    program = folder / "sior"
    subprocess.run(["mpicc", "-O2", "-o", program, Path(__file__).with_name("_sior.c")], check=True)
    ready, log = folder / "ready", folder / "controller.log"
    words = [sys.executable, "-m", "waystage", "controller", "--policy", policy, "--quiet"]
    words += ["--listen", f"unixsock-stream/{folder}/backplane.sock", "--state-dir", str(folder / "state")]
    with open(log, "wb") as out:
        controller = subprocess.Popen([*words, "--ready-file", str(ready)], stdout=out, stderr=out)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if controller.poll() is not None or time.monotonic() > until:
                raise BenchError(f"no controller: {log.read_text()[-500:]}")
            time.sleep(0.05)
        return _run(folder, program, size, count, load_after)
    finally:
        controller.terminate()
        controller.wait(60)


def _run(folder: Path, program: Path, size: int, count: int, load_after: int) -> list[float]:
    delay = folder / "delay"
    delay.write_text("0")
    words = [
        sys.executable,
        "-m",
        "waystage",
        "mpi",
        "--io",
        "--job",
        "1",
        "--memory",
        "16M",
        "--quiet",
        "--",
    ]
    words += ["mpirun", "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    for number, node in enumerate(NODES):
        words += [":"] * bool(number) + ["-np", "1", "-x", f"WAYSTAGE_IO_NODE={node}"]
        words += ["-x", "WAYSTAGE_IO_LISTEN=127.0.0.1:0"]
        words += ["-x", f"WAYSTAGE_IO_DELAY_FILE={delay if node == SLOW else folder / 'none'}"]
        words += [str(program), str(folder / "out"), str(size), str(count), str(COMPUTE_S)]
    env = os.environ | {"WAYSTAGE_FLOWS": str(folder / "flows.sock")}
    found: list[float] = []
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            write, seconds, code = line.split()
            if code != "0":
                raise BenchError(f"write {write} failed with MPI error {code}")
            found.append(float(seconds))
            if len(found) == load_after:
                delay.write_text(str(DELAY_US))
    if run.returncode or len(found) != count:
        raise BenchError(f"{len(found)} of {count} writes, exit status {run.returncode}")
    written = (folder / "out").read_bytes()
    expected = b"".join(bytes([rank + 1]) * size for rank in range(len(NODES))) * count
    if written != expected:
        raise BenchError("the file does not hold what was written")
    return found
