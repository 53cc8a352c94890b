"""Nodes of the benchmark `many-nodes`: network namespaces with a Dask worker each, and one with scheduler and client.

Arrives: a folder, a number of nodes.
Leaves: a cluster whose network no other process reaches; nothing after the block.
Must not know: what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waystage.bench import BenchError, installed, run_program

NODES = 4
START_S = 90.0

HEAD = "10.77.0.254"


@dataclass
class Nodes:
    """`names` are namespaces; the last one is of the scheduler and the client."""

    folder: Path
    names: list[str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(json.loads((self.folder / "scheduler.json").read_bytes())["address"])

    def options(self, shared: Path) -> list[str]:
        """Options of a command that these nodes are to run."""
        return ["--scheduler", self.address, "--nodes-dir", str(shared)]

    def waystage(self, *words: object) -> float:
        """Run a command as the client; its seconds. Raises BenchError."""
        began = time.perf_counter()
        run_program([*self._within(-1), sys.executable, "-m", "waystage", *words])
        return time.perf_counter() - began

    def start(self, node: int, *words: object) -> subprocess.Popen[bytes]:
        """Start a command on a node."""
        command = [*self._within(node), sys.executable, "-m", "waystage", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def dask(self, node: int, *words: object) -> subprocess.Popen[bytes]:
        """Start a scheduler or worker in a namespace."""
        command = [*self._within(node), sys.executable, "-m", "dask", *map(str, words)]
        with open(self.folder / f"log-{len(self.processes)}", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def kill(self, node: int) -> None:
        """SIGKILL to a worker."""
        self.workers[node].kill()

    def alive(self) -> int:
        """How many workers run."""
        return sum(worker.poll() is None for worker in self.workers)

    def _within(self, node: int) -> list[str]:
        # Only the network: `ip netns exec` would also hide mounts that are made later.
        return ["nsenter", f"--net=/run/netns/{self.names[node]}", "--"]


@contextmanager
def dask_nodes(folder: Path, count: int) -> Iterator[Nodes]:
    """A cluster of `count` nodes. Raises BenchError where it does not come up."""
    installed("nsenter", "util-linux")
    installed("ip", "iproute2")
    folder.mkdir()
    tag = f"wd{os.getpid() % 100_000}{folder.name[0]}"
    nodes = Nodes(folder, [f"{tag}{number}" for number in range(count)] + [f"{tag}h"])
    try:
        _connect(nodes.names)
        quiet = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        file = folder / "scheduler.json"
        nodes.dask(-1, "scheduler", "--host", HEAD, "--port", 0, "--scheduler-file", file, *quiet)
        _await(lambda: file.exists() and file.read_bytes().strip().endswith(b"}"))
        for node in range(count):
            place = folder / f"scratch-{node}"
            words = ["--nthreads", 1, "--memory-limit", 0, "--no-nanny", "--local-directory", place]
            nodes.workers.append(nodes.dask(node, "worker", nodes.address, *words, *quiet))
        for number in range(1, count + 1):
            log = folder / f"log-{number}"
            _await(lambda log=log: b"Registered to" in log.read_bytes())
        yield nodes
    finally:
        for process in nodes.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for name in nodes.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _connect(names: list[str]) -> None:
    """Namespaces around a bridge in the last one."""
    for name in names:
        run_program(["ip", "netns", "add", name])
        run_program(["ip", "-n", name, "link", "set", "lo", "up"])
    head = names[-1]
    run_program(["ip", "-n", head, "link", "add", "bridge", "type", "bridge"])
    run_program(["ip", "-n", head, "addr", "add", f"{HEAD}/24", "dev", "bridge"])
    run_program(["ip", "-n", head, "link", "set", "bridge", "up"])
    for number, name in enumerate(names[:-1]):
        port = f"port{number}"
        peer = ["peer", "name", "eth0", "netns", name]
        run_program(["ip", "-n", head, "link", "add", port, "type", "veth", *peer])
        run_program(["ip", "-n", head, "link", "set", port, "master", "bridge", "up"])
        run_program(["ip", "-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0"])
        run_program(["ip", "-n", name, "link", "set", "eth0", "up"])


def _await(happened: object) -> None:
    assert callable(happened)
    deadline = time.monotonic() + START_S
    while not happened():
        if time.monotonic() > deadline:
            raise BenchError(f"the Dask cluster was not up after {START_S:.0f} s")
        time.sleep(0.05)
