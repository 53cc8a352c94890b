"""Kills of slurmctld, slurmd and the stager under jobs of the lab's Slurm. Used by the benchmark of killed staging.

Slurm saves a job some seconds after its submission: killed before, it forgets the job, as `sbatch` of a site would see.
A kill therefore waits until every submitted job is saved. What was killed is started again after a random pause.
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
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.processes import end

VICTIMS = ("slurmctld", "slurmd", "stager")
JOBS_AT_ONCE = 3
FILES, FILE_BYTES = 40, 50_000
RUN_S = 3
MOST_PAUSE_S, MOST_AWAY_S = 2.0, 1.0
SAVED_S = 20.0
PATIENCE_S = 300.0
ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED"}


def slurm_kills(kills: int, chance: random.Random, options: BenchOptions) -> dict[str, int]:
    """`lost_jobs`, `wrong_bytes`, `stuck` and the number of `jobs` after that many kills."""
    with slurm_site("wscrash", "burst-buffer") as site:
        jobs = _Jobs(site)
        for number in range(kills):
            victim = VICTIMS[number % len(VICTIMS)]
            options.progress(f"kill {number + 1} of {kills} under Slurm: {victim}", number / kills)
            jobs.fill()
            jobs.wait_saved()
            time.sleep(chance.uniform(0.0, MOST_PAUSE_S))
            host = chance.choice(site.slurm.nodes)
            _kill(site, f"slurmd on {host}" if victim == "slurmd" else victim)
            time.sleep(chance.uniform(0.0, MOST_AWAY_S))
            if victim == "slurmctld":
                site.slurm.start_controller()
            elif victim == "slurmd":
                site.slurm.start_node(host)
            else:
                site.slurm.start_stager()
        options.progress("the rest of the jobs under Slurm", 1.0)
        return jobs.finish()


def _kill(site: SlurmSite, name: str) -> None:
    for daemon in Daemon.read_all(site.lab.resources.daemons):
        if daemon.name == name:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon.process.pid, signal.SIGKILL)
            end(daemon.process)


class _Jobs:
    """Jobs of the run, by Slurm's id; each returns the tree that it was given."""

    def __init__(self, site: SlurmSite) -> None:
        self._site = site
        self._ids: dict[int, Path] = {}
        archive = site.near / "archive"
        archive.mkdir()
        for index in range(FILES):
            (archive / f"{index:03d}").write_bytes(os.urandom(FILE_BYTES))
        self._archive, self._wanted = archive, digest(archive)
        self._submitted = 0.0

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
                f"#BB_LUA stage_in source={self._archive} destination={place}/in\n"
                f"#BB_LUA stage_out source={place}/out destination={place}/back\n"
                f"set -e\nsleep {RUN_S}\nrm -rf {place}/out\ncp -r {place}/in {place}/out\n"
            )
            output = f"{self._site.near}/c{number}.out"
            self._ids[self._site.sbatch(script, "--output", output, "--nodes=1")] = place
            self._submitted = time.time()

    def wait_saved(self) -> None:
        saved = self._site.slurm.folders.state / "job_state"
        deadline = time.monotonic() + SAVED_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if saved.stat().st_mtime > self._submitted:
                    return
            time.sleep(0.1)

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
