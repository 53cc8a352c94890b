"""Run a command and delay threads and processes below it at random, as a loaded machine does, but more often.

Arrives: a command line; optionally --seed N.
Leaves: the command's exit status; no process stopped, no thread with another scheduling policy.
Must not know: what the command does.

A thread is delayed by SCHED_IDLE (sched(7)), which takes effect where the processors are in use; a process by SIGSTOP,
for 0.4 s at most. Races in a program and in its tests show by this that show once in a hundred runs otherwise.
Launchers of MPI programs are left alone, since they forward SIGCONT into what they run, and Open vSwitch, whose stop is
one of the network. Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LEFT_ALONE = ("cargo", "hydra", "mpiexec", "mpirun", "orted", "ovs", "prted", "rustc", "slurmctld")

STEP_S, SCAN_S = 0.01, 0.25
"""Between two checks of what is due, and between two scans of the processes."""

MOST_THREADS = 4
"""Threads that are delayed at the same time."""

MEAN_THREAD_S, MEAN_STOP_S, LONGEST_STOP_S = 0.15, 0.1, 0.4
STOP_CHANCE = 0.05
"""Of each step in which no process is stopped."""


class Delays:
    """What is delayed below the process `root`, and until when."""

    def __init__(self, root: int, draw: random.Random) -> None:
        self._root, self._draw = root, draw
        self._processes: list[int] = []
        self._scan_at = 0.0
        self._threads: dict[int, float] = {}
        self._stopped: dict[int, float] = {}

    def step(self) -> None:
        """End the delays that are due, and begin others."""
        now = time.monotonic()
        if now >= self._scan_at:
            self._scan_at = now + SCAN_S
            self._processes = list(self._below())
            for process in self._processes:
                self._restore_inherited(process)
        self._end(now)
        if not self._processes:
            return
        process = self._draw.choice(self._processes)
        if len(self._threads) < MOST_THREADS and (threads := _threads_of(process)):
            thread = self._draw.choice(threads)
            if _schedule(thread, os.SCHED_IDLE):
                self._threads[thread] = now + self._draw.expovariate(1 / MEAN_THREAD_S)
        # One that is stopped by its test stays so.
        if (
            not self._stopped
            and self._draw.random() < STOP_CHANCE
            and _state(process) not in ("T", "t", "Z", "")
        ):
            pause = min(self._draw.expovariate(1 / MEAN_STOP_S), LONGEST_STOP_S)
            if _signal(process, signal.SIGSTOP):
                self._stopped[process] = now + pause

    def close(self) -> None:
        """End all delays."""
        self._end(float("inf"))

    def _end(self, now: float) -> None:
        for thread in [thread for thread, until in self._threads.items() if until <= now]:
            del self._threads[thread]
            _schedule(thread, os.SCHED_OTHER)
        for process in [process for process, until in self._stopped.items() if until <= now]:
            del self._stopped[process]
            _signal(process, signal.SIGCONT)

    def _below(self) -> Iterator[int]:
        children: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for folder in Path("/proc").glob("[0-9]*"):
            name, rest = _stat(folder)
            if rest:
                children[int(rest[1])].append((int(folder.name), name))
        todo = [self._root]
        while todo:
            for process, name in children[todo.pop()]:
                todo.append(process)
                if not name.startswith(LEFT_ALONE):
                    yield process

    def _restore_inherited(self, process: int) -> None:
        """Threads and processes that were made by a delayed one have its policy."""
        for thread in _threads_of(process):
            try:
                inherited = thread not in self._threads and os.sched_getscheduler(thread) == os.SCHED_IDLE
            except OSError:
                continue
            if inherited:
                _schedule(thread, os.SCHED_OTHER)


def _stat(folder: Path) -> tuple[str, list[str]]:
    """Name and fields from the state on, of proc_pid_stat(5); empty where the process is gone."""
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", []
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def _state(process: int) -> str:
    _, rest = _stat(Path(f"/proc/{process}"))
    return rest[0] if rest else ""


def _threads_of(process: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return []


def _schedule(thread: int, policy: int) -> bool:
    try:
        os.sched_setscheduler(thread, policy, os.sched_param(0))
    except OSError:
        return False
    return True


def _signal(process: int, number: signal.Signals) -> bool:
    try:
        os.kill(process, number)
    except OSError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Delay threads and processes of a command at random.")
    parser.add_argument("--seed", type=int, help="seed of the random choices; default: another one each time")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command to run, after --")
    given = parser.parse_args()
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not words:
        parser.error("name a command to run")
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"delays with --seed {seed}", file=sys.stderr)
    with subprocess.Popen(words) as running:
        delays = Delays(running.pid, random.Random(seed))
        try:
            while running.poll() is None:
                delays.step()
                time.sleep(STEP_S)
        except KeyboardInterrupt:
            pass  # the command got it too
        finally:
            delays.close()
    return running.returncode if running.returncode >= 0 else 128 - running.returncode


if __name__ == "__main__":
    sys.exit(main())
