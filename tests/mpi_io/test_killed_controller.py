"""A controller that is killed while an application waits for its grant: the wait ends with the lease."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from mpi_io.conftest import DEADLINE_S, OPEN_MPI
from waystage.worlds.lab import mpi

LEASE_S = 3
OPERATIONS = 300
"""Of 0.03 s: three leases, of which a busy controller may miss one before the application is held."""

HOLDS = f'''
"""Lets every application wait, with a lease that it renews."""
from waystage.events import AggregatorReport, GrantIo, IoApplicationStarted


class Holds:
    name = "holds"
    acts_on = frozenset({{"grants"}})

    def __call__(self, event, state):
        if not isinstance(event, AggregatorReport | IoApplicationStarted):
            return ()
        until_ns = state.time_ns + {LEASE_S} * 10**9
        return [GrantIo(app=app, weight=0.0, until_ns=until_ns) for app in state.io.applications]
'''


def lines_of(pipe: IO[str], into: queue.SimpleQueue[str]) -> None:
    for line in pipe:
        into.put(line)


def test_an_application_that_waits_goes_on_when_its_controller_is_killed(tmp_path: Path) -> None:
    if shutil.which(OPEN_MPI.launcher[0]) is None or shutil.which("mpicc") is None:
        pytest.skip(f"{OPEN_MPI.launcher[0]} is missing: install {OPEN_MPI.name}")
    (tmp_path / "holds.py").write_text(HOLDS)
    ready, flows = tmp_path / "ready", tmp_path / "flows.sock"
    env = os.environ | {"PYTHONPATH": str(tmp_path), "WAYSTAGE_FLOWS": str(flows)}
    waystage = [sys.executable, "-m", "waystage"]
    words = [*waystage, "controller", "--policy", "holds:Holds", "--quiet", "--ready-file", str(ready)]
    words += ["--listen", f"unixsock-stream/{tmp_path}/b.sock", "--state-dir", str(tmp_path / "state")]
    controller = subprocess.Popen(words, env=env)
    program = [
        str(mpi.build("phases")),
        str(tmp_path / "out"),
        "200000",
        str(OPERATIONS),
        "0.03",
        "0",
        "1",
        "1000000",
    ]
    launch = [*waystage, "mpi", "--io", "--quiet", "--", *OPEN_MPI.launcher, "-n", "2", *program]
    run = None
    try:
        until = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert controller.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        run = subprocess.Popen(launch, env=env, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=lines_of, args=(run.stdout, lines), daemon=True).start()
        assert lines.get(timeout=DEADLINE_S) == "begun\n"
        done = 0
        with pytest.raises(queue.Empty):  # held: for longer than the lease, since it is renewed
            while lines.get(timeout=1.5 * LEASE_S):
                done += 1
        assert done < OPERATIONS, "it was not held"
        controller.kill()
        controller.wait()
        while done < OPERATIONS:
            words = lines.get(timeout=DEADLINE_S).split()
            done += 1
            assert words[4] == "0", "an operation failed"
        assert run.wait(DEADLINE_S) == 0
        assert (tmp_path / "out").read_bytes()[:1] == bytes([OPERATIONS % 256])
    finally:
        for process in (controller, run):
            if process is not None and process.poll() is None:
                process.kill() if process is controller else process.terminate()
                process.wait()
