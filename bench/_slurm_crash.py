"""Kills of slurmctld, slurmd, stager, engines and controller under jobs of the lab's Slurm. Used by `staging-crash`.

slurmctld saves its jobs some seconds late. Killed before that it forgets a job, as `sbatch` of a site would see, or its
start: Slurm 22.05 then may let it wait for a stage-in that it does not run again, which `waystage slurm watch` reports.
A kill of slurmctld therefore waits until the last change of a job's state is saved; what its hooks do then, and its
burst buffers, which it saves up to a minute late, are at any point. What was killed is started again after a random
pause.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

from _slurm_site import SlurmSite, digest, slurm_site

from waystage.bench import BenchOptions
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.processes import end

VICTIMS = ("slurmctld", "slurmd", "stager", "engine", "controller")
POLICY = "link-separation"
JOBS_AT_ONCE = 3
ENGINE_S = 30.0
FILES, FILE_BYTES = 40, 50_000
RUN_S = 3
# Longer than jobs take between two kills of the same victim: they move on, and do not only begin again.
MOST_PAUSE_S, MOST_AWAY_S = 6.0, 1.0
SAVED_S = 20.0
PATIENCE_S = 300.0
ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"}


def slurm_kills(kills: int, chance: random.Random, options: BenchOptions) -> dict[str, int]:
    """`lost_jobs`, `wrong_bytes`, `stuck`, the number of `jobs`, and the `kills` that met something."""
    with slurm_site("wscrash", "burst-buffer") as site:
        jobs, missed = _Jobs(site), 0
        for number in range(kills):
            victim = VICTIMS[number % len(VICTIMS)]
            options.progress(f"kill {number + 1} of {kills} under Slurm: {victim}", number / kills)
            jobs.fill()
            jobs.watch(chance.uniform(0.0, MOST_PAUSE_S))
            if victim == "slurmctld":
                jobs.wait_saved()
            host = chance.choice(site.slurm.nodes)
            if victim == "engine":
                missed += not _kill_engine(site, chance)
                continue
            _kill(site, {"slurmd": f"slurmd on {host}", "controller": "the controller"}.get(victim, victim))
            time.sleep(chance.uniform(0.0, MOST_AWAY_S))
            if victim == "slurmctld":
                site.slurm.start_controller()
            elif victim == "slurmd":
                site.slurm.start_node(host)
            elif victim == "controller":
                start_controller(site.lab, POLICY)
            else:
                site.slurm.start_stager()
        options.progress("the rest of the jobs under Slurm", 1.0)
        return jobs.finish() | {"kills": kills - missed}


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
        self._seen: dict[int, str] = {}
        self._changed = 0.0

    def fill(self) -> None:
        """Submit until `JOBS_AT_ONCE` jobs are active."""
        while sum(state in ACTIVE for state in self._states().values()) < JOBS_AT_ONCE:
            number = len(self._ids)
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
            output = f"{self._site.near}/c{number}.out"
            self._ids[self._site.sbatch(script, "--output", output, "--nodes=1")] = place
            self._changed = time.time()

    def watch(self, seconds: float) -> None:
        """Note when a job's state changes, for this time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
            time.sleep(0.2)

    def wait_saved(self) -> None:
        """Until slurmctld has saved the last change of a job's state that was seen."""
        saved = self._site.slurm.folders.state / "job_state"
        deadline = time.monotonic() + SAVED_S
        while time.monotonic() < deadline:
            self._look()
            with contextlib.suppress(FileNotFoundError):
                if saved.stat().st_mtime > self._changed:
                    return
            time.sleep(0.1)

    def _look(self) -> None:
        states = self._states()
        if states != self._seen:
            self._seen, self._changed = states, time.time()

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
        return {"lost_jobs": lost, "wrong_bytes": wrong, "stuck": stuck, "jobs": len(self._ids)}

    def _states(self) -> dict[int, str]:
        """Slurm's account; while slurmctld is away, every job counts as active."""
        found = self._site.states(list(self._ids))
        if self._ids and not any(found.values()):
            return dict.fromkeys(self._ids, "PENDING")
        return found
