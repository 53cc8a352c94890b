"""Slurm of a lab, used as an ordinary user does who is not root."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness import Ran, ran
from waystage.worlds.lab.commands import environment, program
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.processes import end
from waystage.worlds.lab.slurm import LabSlurm

USER = 65534
"""nobody: Slurm gives no burst buffer to root, and a job of root would prove nothing about rights."""

JOB_LIMIT_S = 120.0


def until_true(ready: Callable[[], object], what: Callable[[], object] = str) -> None:
    """Until `ready`; fails with `what` after a generous time."""
    deadline = time.monotonic() + JOB_LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


class Cluster(NamedTuple):
    """A lab whose Slurm is up, and a folder that the user may write to."""

    lab: Lab
    slurm: LabSlurm
    folder: Path

    def run(self, *words: str | Path, uid: int = USER) -> Ran:
        """Run one of Slurm's commands as a user beside slurmctld."""
        become = [program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        return ran(
            [*self.slurm.enter(), *become, *(str(w) for w in words)],
            env=environment(self.slurm.environment),
            cwd=self.folder,
        )

    def submit(self, text: str, *options: str) -> int:
        """The id of a job whose script is `text`."""
        done = self.sbatch(text, *options)
        found = re.search(r"Submitted batch job (\d+)", done.out)
        assert done.code == 0 and found, done
        return int(found[1])

    def sbatch(self, text: str, *options: str) -> Ran:
        script = self.folder / f"job{time.monotonic_ns()}.sh"
        script.write_text("#!/bin/bash\n" + text)
        return self.run("sbatch", "--output", self.folder / "out-%j", *options, script)

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        done = self.run("scontrol", "-o", "show", "job", str(job_id), uid=0)
        return dict(word.split("=", 1) for word in done.out.split() if "=" in word)

    def wait(self, job_id: int, *states: str) -> dict[str, str]:
        """The job's fields once it is in one of `states`."""
        found: dict[str, str] = {}

        def there() -> bool:
            found.clear()
            found.update(self.job(job_id))
            return found.get("JobState") in states

        until_true(there, lambda: found)
        return found

    def until_saved(self, text: bytes, since: float = 0.0) -> None:
        """Until slurmctld has saved its jobs after that time, one of them with this text: it does so seconds late."""
        path = self.slurm.folders.state / "job_state"

        def saved() -> bool:
            try:
                return path.stat().st_mtime > since and text in path.read_bytes()
            except FileNotFoundError:
                return False  # it replaces the file by removing it first

        until_true(saved, lambda: self.run("squeue"))

    def output(self, job_id: int) -> str:
        return (self.folder / f"out-{job_id}").read_text()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon of the lab; after SIGKILL it is no longer watched."""
        (daemon,) = (d for d in Daemon.read_all(self.lab.resources.daemons) if d.name == name)
        os.kill(daemon.process.pid, number)
        if number == signal.SIGKILL:
            end(daemon.process)
