"""What the command line leaves, for tests that run it as a user does (fixture `waystage`)."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from waystage.bench import load_module
from waystage.machine import CpuWatch

BENCH = Path(__file__).parents[1] / "bench"
"""The folder of benchmarks."""


def bench_module(name: str) -> ModuleType:
    """The module `bench/NAME.py`, as `waystage bench` loads it."""
    return load_module(BENCH / f"{name}.py")


IMPORTED_LATER = "fractions, json, resource, shlex, waystage.cli.errors, waystage.flows, waystage.wan.ssh"
"""Modules that a command imports when it needs them: to be imported before a test's process drops the rights that reading
them takes."""


@dataclass(frozen=True)
class Ran:
    """A finished run of the command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as the one JSON object that `--json` promises."""
        return json.loads(self.out)

    def expect(self, code: int = 0) -> Ran:
        """Itself, if it ended with this status."""
        assert self.code == code, self.err + self.out
        return self


def ran(command: Sequence[object], *, timeout: float = 150, **settings: Any) -> Ran:
    """Run a command to its end, whatever its status."""
    words = [str(word) for word in command]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout, **settings
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def command(*words: object) -> list[str]:
    """The command line of `waystage`."""
    return [sys.executable, "-m", "waystage", *map(str, words)]


Waystage = Callable[..., Ran]
"""`waystage("lab", "status", "--json")` runs the command in a scratch directory."""


WAIT_S = 90.0
"""However slow the machine: what has not happened by then does not happen."""


def wait_until(
    condition: Callable[[], object], alive: subprocess.Popen[Any] | None = None, what: str = "it"
) -> None:
    """Until the condition holds. Fails at once where the process that is to make it hold has ended, and names what did not happen."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if alive is not None and alive.poll() is not None:
            if condition():
                return  # It came about, and the process ended, since the condition was looked at.
            pytest.fail(f"it has ended: {alive.communicate()}")
        assert time.monotonic() < deadline, f"{what} did not happen in {WAIT_S} s"
        time.sleep(0.01)


_given: set[int] = set()
"""Ports that tests of this process have."""


def free_port() -> int:
    """A port of the loopback interface that is free, and that the system gives to no socket which asks for any.

    One that it gives would be given again, to a test beside this one, before the program that it is for listens. Each
    process of a run of tests has other ports.
    """
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.randrange(10_000 + process, least, processes)
        if port in _given:
            continue
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port


def halt(process: int) -> None:
    """Stop a process until SIGCONT, and return when all its threads have: the others run on until the first has taken the signal."""
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: all(_stands(task) for task in Path(f"/proc/{process}/task").iterdir()))


def _stands(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended since it was listed


@contextmanager
def folder_for_all(name: str, mode: int) -> Iterator[Path]:
    """A new folder of this mode that every user can reach, as under /run or /tmp; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        made = Path(above) / name
        made.mkdir()
        made.chmod(mode)
        yield made


@contextmanager
def measuring() -> Iterator[None]:
    """For what needs a machine that keeps up with an emulated cluster.

    A failure while no processor time was left says nothing of the code: the test is skipped then, with that reason.
    """
    watch = CpuWatch().start()
    try:
        yield
    except (AssertionError, pytest.fail.Exception) as failure:
        watch.stop()
        if watch.short_of_cpu:
            pytest.skip(f"the machine was {watch.idle_pct:.1f} % idle, too busy to tell: {failure}")
        raise
    finally:
        watch.stop()


def open_to_others(folder: Path) -> None:
    """Let every user reach a folder of pytest's: those above it, which pytest made, are their owner's alone."""
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            return
        mode = each.stat().st_mode
        if not mode & 0o001:
            each.chmod(mode | 0o055)
