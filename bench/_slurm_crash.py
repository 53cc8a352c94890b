"""Kills of slurmctld, slurmd, stager, engines and controller under jobs of the lab's Slurm. Used by `staging-crash`.

Each kill comes at a random moment, and what was killed is started again after a random pause. slurmctld saves jobs up
to 5 s and burst buffers up to 30 s late: what it has forgotten then, `waystage slurm watch` brings on. One thing is
Slurm's alone: a job that it had accepted a moment before, and does not know afterwards. It is submitted again, as its
user would, under a new id, and counted (`forgotten`): it has not been begun, and no byte of it is lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from _slurm_site import SlurmSite, digest, slurm_site

from waystage.bench import BenchOptions
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.processes import end

VICTIMS = ("slurmctld", "slurmd", "stager", "engine", "controller")
POLICY = "link-separation"
JOBS_AT_ONCE = 3
ENGINE_S = 15.0
FILES, FILE_BYTES = 40, 500_000
RUN_S = 3
# Longer than jobs take between two kills of the same victim: they move on, and do not only begin again.
MOST_PAUSE_S, MOST_AWAY_S = 5.0, 1.0
ANSWER_S = 30.0
PATIENCE_S = 300.0
FINISH_S = 40.0
"""Usual time of the jobs that are left after the last kill; a run with a limit keeps it."""

ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"}


def slurm_kills(kills: int, chance: random.Random, options: BenchOptions) -> dict[str, Any]:
    """`lost_jobs`, `wrong_bytes`, `stuck`, the number of `jobs`, and the `kills` of each victim that met something.

    Interrupted (by Ctrl-C or the time limit), it kills no more, waits for its jobs, and tells what it has.
    """
    killed = dict.fromkeys(VICTIMS, 0)
    with slurm_site("wscrash", "burst-buffer") as site:
        jobs = _Jobs(site)
        with options.limit.interruptible():
            for number in options.limit.steps(range(kills), parts=1, reserve_s=FINISH_S):
                victim = VICTIMS[number % len(VICTIMS)]
                options.progress(f"kill {number + 1} of {kills} under Slurm: {victim}", number / kills)
                jobs.fill()
                if victim == "engine":
                    jobs.add()  # the others may wait for a slurmctld that was killed
                time.sleep(chance.uniform(0.0, MOST_PAUSE_S))
                killed[victim] += _kill_and_start(site, jobs, victim, chance)
        if options.limit.interrupted:
            _start_all(site)
        options.progress("the rest of the jobs under Slurm", 1.0)
        return jobs.finish() | {"kills": killed}


def _kill_and_start(site: SlurmSite, jobs: _Jobs, victim: str, chance: random.Random) -> bool:
    """False where there was nothing to kill."""
    host = chance.choice(site.slurm.nodes)
    if victim == "engine":
        return _kill_engine(site, chance)
    _kill(site, {"slurmd": f"slurmd on {host}", "controller": "the controller"}.get(victim, victim))
    time.sleep(chance.uniform(0.0, MOST_AWAY_S))
    if victim == "slurmctld":
        site.slurm.start_controller()
        jobs.submit_forgotten()
    elif victim == "slurmd":
        site.slurm.start_node(host)
    elif victim == "controller":
        start_controller(site.lab, POLICY)
    else:
        site.slurm.start_stager()
    return True


def _start_all(site: SlurmSite) -> None:
    """What an interrupted turn has killed and not started."""
    alive = {each.name for each in Daemon.read_all(site.lab.resources.daemons) if each.process.alive}
    for host in site.slurm.nodes:
        if f"slurmd on {host}" not in alive:
            site.slurm.start_node(host)
    if "slurmctld" not in alive:
        site.slurm.start_controller()
    if "stager" not in alive:
        site.slurm.start_stager()


def _kill(site: SlurmSite, name: str) -> None:
    for daemon in Daemon.read_all(site.lab.resources.daemons):
        if daemon.name == name:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.process.pid, signal.SIGKILL)
            end(daemon.process)


def _kill_engine(site: SlurmSite, chance: random.Random) -> bool:
    """`kill -9` of an engine; False where none runs for long."""
    until = time.monotonic() + ENGINE_S
    while time.monotonic() < until:
        running = _engines(site)
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(running), signal.SIGKILL)
            return True
        time.sleep(0.01)
    return False


def _engines(site: SlurmSite) -> list[int]:
    """Engines of this site's stager: children of its children."""
    found = [
        each.process.pid for each in Daemon.read_all(site.lab.resources.daemons) if each.name == "stager"
    ]
    for _ in range(2):
        found = [child for pid in found for child in _children(pid)]
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


class _Jobs:
    """Jobs of the run, by Slurm's id; each returns the tree that it was given."""

    def __init__(self, site: SlurmSite) -> None:
        self._site = site
        self._ids: dict[int, Path] = {}
        archive = site.far / "archive"
        archive.mkdir()
        for index in range(FILES):
            (archive / f"{index:03d}").write_bytes(os.urandom(FILE_BYTES))
        self._archive, self._wanted = archive, digest(archive)
        self.forgotten = self._made = 0

    def fill(self) -> None:
        """Submit until `JOBS_AT_ONCE` jobs are active."""
        while sum(state in ACTIVE for state in self._states().values()) < JOBS_AT_ONCE:
            self.add()

    def add(self) -> None:
        """Submit one more."""
        number, self._made = self._made, self._made + 1
        place = self._site.near / f"c{number}"
        place.mkdir()
        os.chown(place, self._site.uid, self._site.gid)
        script = self._site.folder / f"c{number}.sh"
        script.write_text(
            "#!/bin/bash\n"
            f"#BB_LUA stage_in source={self._site.there('archive')} destination={place}/in\n"
            f"#BB_LUA stage_out source={place}/out destination={place}/back\n"
            f"set -e\nsleep {RUN_S}\nrm -rf {place}/out\ncp -r {place}/in {place}/out\n"
        )
        self._submit(place)

    def _submit(self, place: Path) -> None:
        script = self._site.folder / f"{place.name}.sh"
        output = f"{self._site.near}/{place.name}.out"
        job = self._site.sbatch(script, "--output", output, "--nodes=1")
        if job in self._ids:  # Slurm gives the id of a job that it has forgotten again
            self.forgotten += 1
            lost = self._ids.pop(job)
            self._ids[job] = place
            self._submit(lost)
            return
        self._ids[job] = place

    def submit_forgotten(self) -> None:
        """Submit again what slurmctld had accepted and does not know."""
        deadline = time.monotonic() + ANSWER_S
        while (known := self._site.known()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        for job in [job for job in self._ids if known is not None and job not in known]:
            self.forgotten += 1
            self._submit(self._ids.pop(job))

    def finish(self) -> dict[str, int]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            waiting = [place for place in self._ids.values() if digest(place / "back") != self._wanted]
            if not waiting:
                break
            time.sleep(0.5)
        states = self._states()
        wrong = lost = stuck = 0
        for job, place in self._ids.items():
            if digest(place / "back") == self._wanted:
                continue
            if states.get(job, "") in ACTIVE:
                stuck += 1
            else:
                lost += 1
                wrong += FILES * FILE_BYTES if (place / "back").exists() else 0
        return {"lost_jobs": lost, "wrong_bytes": wrong, "stuck": stuck, "jobs": len(self._ids)} | {
            "forgotten": self.forgotten
        }

    def _states(self) -> dict[int, str]:
        """Slurm's account; while slurmctld is away, every job counts as active."""
        found = self._site.states(list(self._ids))
        if self._ids and not any(found.values()):
            return dict.fromkeys(self._ids, "PENDING")
        return found
