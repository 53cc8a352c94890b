"""What 50 kills of slurmctld, slurmd, stager, engines and controller at random moments do to jobs that are being staged.

Jobs are staged in from this host and from a far end (`waystage serve`), and out again, at a limited rate, so that there
is always something to kill. Each kill is `kill -9` of the stager, an engine or the controller at a random moment; what
was killed is started again after a random pause, as systemd does. `lost_jobs` counts jobs of which a request is unknown,
failed or cancelled in the end; `wrong_bytes` counts bytes at the destinations that differ from the source's, missing
ones included; `stuck` counts requests that have not ended ten minutes after the last kill, engines that outlived their
stager, and jobs that the controller still believes to be staging.

Interrupted by Ctrl-C or the time limit, it kills no more, waits for its jobs and prints what it has. All of it takes
about six minutes.

Where Slurm is installed, a third as many kills are of stager, engines and controller alone, whose requests are slow and
far; then 50 of all five follow, under jobs of the lab's Slurm with directives (`details.slurm`), and count with them.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from _slurm_crash import slurm_kills
from _staging_site import Site, different_bytes, site

from waystage.bench import BenchOptions
from waystage.worlds.lab.slurm import available

KILLS, KILLS_QUICK = 50, 3
TAKES_S = 400, 20
LEAST_S = 40, 20
VICTIMS = ("stager", "engine", "controller")
JOBS_AT_ONCE = 3
LARGE_FILES, LARGE_BYTES, SMALL_FILES, SMALL_BYTES = 2, 12 << 20, 200, 4000
RATE = "8M"
MOST_PAUSE_S, MOST_AWAY_S = 2.0, 1.0
PATIENCE_S = 600.0
FINISH_S = 20.0
"""Usual time of the jobs that are left after the last kill; a run with a limit keeps it."""

SLURM_LEAST_S = 90.0
"""Usual time of a site with Slurm, from its start to its end, with the first kills and the jobs that are left."""

ALONE, SLURM = "kills of the stager alone", "kills under Slurm"


def run(options: BenchOptions) -> dict[str, Any]:
    kills = options.repetitions or (KILLS_QUICK if options.quick else KILLS)
    chance = random.Random(19)
    outcome: dict[str, Any] = {}
    slurm = None
    under_slurm = available() and not options.quick
    parts = {ALONE: 0.0} | ({SLURM: SLURM_LEAST_S} if under_slurm else {})
    if options.quick:
        options.limit.missing.append(SLURM)
    for part, left in options.limit.shares(parts, least_s=parts.__getitem__):
        if part == ALONE:
            outcome = _alone(kills // 3 if under_slurm else kills, chance, options, left)
        else:
            slurm = slurm_kills(kills, chance, options)
    return {
        "figures": {
            key: outcome[key] + (slurm or {}).get(key, 0) for key in ("lost_jobs", "wrong_bytes", "stuck")
        },
        "details": outcome | {"slurm": slurm},
    }


def _alone(kills: int, chance: random.Random, options: BenchOptions, parts: int) -> dict[str, Any]:
    """Kills without Slurm, in the first of `parts`: what became of the jobs, their number and that of kills."""
    killed = dict.fromkeys(VICTIMS, 0)
    with site() as here:
        for name in ("server", "controller", "stager"):
            here.start(name)
        jobs = Jobs(here, chance)
        with options.limit.interruptible():
            for number in options.limit.steps(range(kills), parts, reserve_s=FINISH_S):
                jobs.fill()
                victim = VICTIMS[number % len(VICTIMS)]
                options.progress(f"kill {number + 1} of {kills}: {victim}", number / kills)
                time.sleep(chance.uniform(0.0, MOST_PAUSE_S))
                if victim == "engine":
                    until = time.monotonic() + PATIENCE_S
                    while not here.kill_engine(chance) and time.monotonic() < until:
                        time.sleep(0.02)
                else:
                    here.kill(victim)
                    time.sleep(chance.uniform(0.0, MOST_AWAY_S))
                    here.start(victim)
                killed[victim] += 1
        if options.limit.interrupted:
            here.start_all("server", "controller", "stager")
        options.progress("the rest", 1.0)
        return jobs.finish() | {"kills": killed, "jobs": len(jobs.requests)}


class Jobs:
    """Jobs, each with a stage-in from here, one from the far end, and a stage-out of both."""

    def __init__(self, here: Site, chance: random.Random) -> None:
        self._here = here
        self.requests: dict[str, list[tuple[int, Path, Path]]] = {}
        self._source = here.folder / "data" / "source"
        _make(self._source, chance)
        here.own(self._source)

    def fill(self) -> None:
        """Submit jobs until `JOBS_AT_ONCE` have requests that are not done."""
        open_jobs = {each["job_id"] for each in self._status() if each["state"] in ("queued", "running")}
        while len(open_jobs) < JOBS_AT_ONCE:
            job = f"job-{len(self.requests) + 1}"
            top = self._here.folder / "data" / job
            far, options = self._here.far(self._source)
            slowly = ("--bandwidth-limit", RATE)
            near_copy, far_copy, out = top / "near", top / "far", top / "out"
            self.requests[job] = [
                (
                    self._here.submit("in", self._source, near_copy, job, *slowly, "--key", f"{job}-1"),
                    self._source,
                    near_copy,
                ),
                (
                    self._here.submit("in", far, far_copy, job, *slowly, *options, "--key", f"{job}-2"),
                    self._source,
                    far_copy,
                ),
                (
                    self._here.submit("out", near_copy, out, job, *slowly, "--key", f"{job}-3"),
                    self._source,
                    out,
                ),
            ]
            open_jobs.add(job)

    def finish(self) -> dict[str, Any]:
        """Wait for all, and count what is not as it should be."""
        until = time.monotonic() + PATIENCE_S
        while (
            any(each["state"] in ("queued", "running") for each in self._status())
            and time.monotonic() < until
        ):
            time.sleep(0.2)
        rows = {each["id"]: each for each in self._status()}
        lost, wrong, stuck, reasons = set[str](), 0, 0, list[str]()
        for job, requests in self.requests.items():
            for number, source, destination in requests:
                row = rows.get(number)
                if row is not None and row["state"] in ("queued", "running"):
                    stuck += 1
                    reasons.append(f"request {number} of {job}: {row['state']}: {row['reason']}")
                elif row is None or row["state"] != "done":
                    lost.add(job)
                    reasons.append(f"request {number} of {job}: {row and row['error']}")
                else:
                    wrong += different_bytes(source, destination)
        believed = self._here.staging_at_controller()
        while believed and time.monotonic() < until:
            time.sleep(0.5)
            believed = self._here.staging_at_controller()
        orphans = _orphans()
        return {
            "lost_jobs": len(lost),
            "wrong_bytes": wrong,
            "stuck": stuck + believed + orphans,
            "attempts": sum(each["attempts"] for each in rows.values()),
            "requests": len(rows),
            "reasons": reasons[:20],
        }

    def _status(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._here.stage("status")
        return found


def _orphans() -> int:
    """Engines whose parent is gone, of which there should be none."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue
        count += head.endswith("(waystage-engine") and tail.split()[1] == "1"
    return count


def _make(tree: Path, chance: random.Random) -> None:
    tree.mkdir()
    for number in range(LARGE_FILES):
        (tree / f"large-{number}").write_bytes(chance.randbytes(LARGE_BYTES))
    (tree / "small").mkdir()
    for number in range(SMALL_FILES):
        (tree / "small" / f"{number:04}").write_bytes(chance.randbytes(SMALL_BYTES))
