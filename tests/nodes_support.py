"""A real Dask scheduler and real workers, each a process on the loopback interface.

Arrives: a directory, how many workers.
Leaves: an address, and workers that can be killed; no process after the block.
Must not know: what is tested.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness import WAIT_S

TESTS = Path(__file__).parent

SCHEDULER = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
WORKER = [
    "--host", "127.0.0.1", "--nthreads", "1", "--memory-limit", "0",
    "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
]  # fmt: skip


@dataclass
class DaskCluster:
    """`workers` are processes in their order of start, without a nanny: a killed one stays away."""

    folder: Path
    address: str = ""
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    security: Sequence[str] = ()
    allowed_failures: int = 3
    """A task that has killed more workers is given up; 3 is Dask's default."""
    _stopping: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False
    _all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self, *more: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker; it is there once `wait_for` has returned."""
        command = ["worker", self.address, *WORKER, "--no-nanny", "--local-directory", str(self.folder)]
        self.workers.append(self._start([*command, *self.security, *more], environment))
        return self.workers[-1]

    def add_doomed(self, place: str) -> subprocess.Popen[bytes]:
        """A worker that is killed at a place in the code: see `doomed_worker`."""
        return self.add_worker("--preload", str(TESTS / "doomed_worker.py"), DOOM=place)

    def wait_for(self, workers: int) -> None:
        """Wait until the scheduler has this number of workers."""
        from distributed import Client

        with Client(self.address, timeout=WAIT_S, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=WAIT_S)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.workers[number].kill()
        self.workers[number].wait()

    def _start(
        self, command: list[str], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with self._stopping:
            # A worker that succeeds a killed one must not come after the end.
            assert not self._stopped
            self._all.append(self._started(command, environment or {}))
            return self._all[-1]

    def _started(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        variables = os.environ | {"PYTHONPATH": str(TESTS)} | environment
        log = open(self.folder / f"log-{len(self.workers)}-{command[0]}", "wb")  # noqa: SIM115
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *command],
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def start(self) -> None:
        """The scheduler."""
        found = self.folder / "scheduler.json"
        command = ["scheduler", *SCHEDULER, "--scheduler-file", str(found), *self.security]
        failures = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(self.allowed_failures)}
        self.scheduler = self._start(command, failures)
        deadline = time.monotonic() + WAIT_S
        while not (address := _address_in(found)):
            assert self.scheduler.poll() is None, (self.folder / "log-0-scheduler").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.address = address

    def stop(self) -> None:
        """All of it."""
        with self._stopping:
            self._stopped = True
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._all:
            process.wait()


def _address_in(file: Path) -> str:
    """What a scheduler has written; empty while it writes."""
    try:
        return str(json.loads(file.read_bytes())["address"])
    except (FileNotFoundError, ValueError):
        return ""


@contextmanager
def dask_cluster(
    folder: Path, workers: int, security: Sequence[str] = (), allowed_failures: int = 3
) -> Iterator[DaskCluster]:
    """A cluster with this number of workers, of one thread each."""
    folder.mkdir(exist_ok=True)
    cluster = DaskCluster(folder, security=security, allowed_failures=allowed_failures)
    try:
        cluster.start()
        for _ in range(workers):
            cluster.add_worker()
        if workers and not security:
            cluster.wait_for(workers)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def doomed_cluster(folder: Path, place: str) -> Iterator[DaskCluster]:
    """A cluster whose only worker is killed at `place` (see `doomed_worker`), upon which another one starts.

    Fails where the first was not killed by the end of the block.
    """
    with dask_cluster(folder, 0) as cluster:
        doomed = cluster.add_doomed(place)
        cluster.wait_for(1)
        threading.Thread(target=_succeed, args=(doomed, cluster), daemon=True).start()
        yield cluster
        # It is killed also where its work is done before; a busy machine may be late with that.
        assert doomed.wait(WAIT_S) == -signal.SIGKILL


def _succeed(doomed: subprocess.Popen[bytes], cluster: DaskCluster) -> None:
    doomed.wait()
    with suppress(AssertionError):
        cluster.add_worker()
