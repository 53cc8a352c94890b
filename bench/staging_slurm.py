"""Twelve jobs with stage-in from far, MPI and stage-out, by Waystage's hooks in Slurm, against rsync.

On the lab's Slurm (six nodes, two a job) each job needs a tree of the far site, computes on two nodes, and returns a tree.
The far site is behind an emulated path of 200 Mbit/s, 50 ms and 0.1 % loss. Contestants: `waystage`, whose directives
stage in while jobs wait and stage out after they ended; `script`, the same job with rsync in its script; `hooks`, the
same directives with burst-buffer hooks that call rsync.

The makespan is from the first submission until the last tree is whole at the far site. `makespan_reduction_pct` is
against the better of both peers. `node_hours_reduction_pct` is against `script`: hooks of a peer hold no nodes while
data moves either; theirs is among the peers. `wrong_bytes` counts bytes of trees that differ, at either end, over all
contestants' turns of ours.

A quick run has two jobs and leaves `hooks` out. A turn of all twelve jobs under each contestant is the smallest that
measures this, and takes about five minutes.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from _slurm_site import SlurmSite, digest, make_tree, programs, slurm_site

from waystage.bench import BenchError, BenchOptions, take_turns
from waystage.worlds.lab.wiring import SUBNET

JOBS, JOBS_QUICK = 12, 2
IN_BYTES, IN_FILES = 16_000_000, 80
OUT_BYTES, OUT_FILES = 8_000_000, 20
NODES = 2
ITERATIONS, TIME_S = 60, 0.05
TURNS, TURNS_QUICK = 3, 1
LIMIT_S = 900.0
PEERS = ("script", "hooks")

RSYNC_HOOKS = """
local function run(job_script, what)
  local file = io.open(job_script, "rb")
  local text = file:read("*a")
  file:close()
  local source, destination = text:match("#BB_LUA " .. what .. " source=(%S+) destination=(%S+)")
  local status = os.execute("mkdir -p " .. (destination:match("^/") and destination or "/tmp")
    .. " && rsync -a " .. source .. "/ " .. destination .. "/ >/dev/null 2>&1 </dev/null")
  if status ~= 0 and status ~= true then
    return slurm.ERROR, "rsync failed"
  end
  return slurm.SUCCESS
end
function slurm_bb_job_process() return slurm.SUCCESS end
function slurm_bb_pools() return slurm.SUCCESS end
function slurm_bb_job_teardown() return slurm.SUCCESS end
function slurm_bb_setup() return slurm.SUCCESS end
function slurm_bb_data_in(job_id, job_script) return run(job_script, "stage_in") end
function slurm_bb_real_size() return slurm.SUCCESS end
function slurm_bb_paths() return slurm.SUCCESS end
function slurm_bb_pre_run() return slurm.SUCCESS end
function slurm_bb_post_run() return slurm.SUCCESS end
function slurm_bb_data_out(job_id, job_script) return run(job_script, "stage_out") end
function slurm_bb_get_status() return slurm.SUCCESS, "" end
"""

COMPUTE = """\
set -e
test "$(cat {place}/in/*.bin | sha256sum | cut -d' ' -f1)" = "$(cat {far}/{name}-in.sum)"
mpirun --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include {subnet} --mca oob_tcp_if_include 10.59.0.0/16 \\
  --mca mpi_yield_when_idle 1 --mca hwloc_base_binding_policy none --map-by node -np {nodes} \\
  {program} --iterations {iterations} --message 65536 --time-ms {time_ms}
mkdir -p {place}/out
cp {results}/*.bin {place}/out/
"""
TAKES_S = 900, 45
LEAST_S = 310, 45


def run(options: BenchOptions) -> dict[str, Any]:
    jobs = JOBS_QUICK if options.quick else JOBS
    peers = PEERS[:1] if options.quick else PEERS
    options.limit.missing += PEERS[len(peers) :]
    turns = take_turns(
        options,
        {name: partial(_measure, name, jobs) for name in ("waystage", *peers)},
        turns=TURNS,
        quick=TURNS_QUICK,
    )
    makespan = turns.medians("makespan_s")
    hours = turns.medians("node_hours")
    best = min(makespan[peer] for peer in peers)
    return {
        "figures": {
            "makespan_reduction_pct": round(100 * (1 - makespan["waystage"] / best), 1),
            "node_hours_reduction_pct": round(100 * (1 - hours["waystage"] / hours["script"]), 1),
            "wrong_bytes": int(sum(turns.values("waystage", "wrong_bytes"))),
        },
        "peers": {
            **{f"{peer}_makespan_s": makespan[peer] for peer in peers},
            **{f"{peer}_node_hours": hours[peer] for peer in peers},
            "peers_wrong_bytes": int(sum(sum(turns.values(peer, "wrong_bytes")) for peer in peers)),
        },
        "details": turns.details() | {"jobs": jobs, "in_bytes": IN_BYTES, "out_bytes": OUT_BYTES},
    }


def _measure(contestant: str, jobs: int, turn: int) -> dict[str, float]:
    """One turn in a separate site."""
    hooks = "burst-buffer" if contestant == "waystage" else None
    lua = RSYNC_HOOKS if contestant == "hooks" else ""
    with slurm_site("wsbench", hooks, burst_buffer_lua=lua) as site:
        results = site.folder / "results"
        wanted = make_results(site, results)
        for index in range(jobs):
            make_tree(site, f"j{index}-in", IN_BYTES, IN_FILES, index)
            (site.far / f"j{index}-in.sum").write_text(_sum(site.far / f"j{index}-in") + "\n")
        scripts = [_script(site, contestant, index, results) for index in range(jobs)]
        began = time.monotonic()
        ids = [
            site.sbatch(
                script,
                "--output",
                f"{site.near}/job-%j.out",
                f"--nodes={NODES}",
                "--exclusive",
                "--ntasks-per-node=1",
            )
            for script in scripts
        ]
        _wait(site, ids)
        makespan_s = time.monotonic() - began
        wrong = 0
        for index in range(jobs):
            if digest(site.far / f"j{index}-out") != wanted:
                wrong += OUT_BYTES
            if digest(site.near / f"j{index}" / "in") != digest(site.far / f"j{index}-in"):
                wrong += IN_BYTES
        return {
            "makespan_s": round(makespan_s, 2),
            "node_hours": round(sum(site.held_s(job) for job in ids) * NODES / 3600, 4),
            "wrong_bytes": wrong,
        }


def make_results(site: SlurmSite, folder: Path) -> str:
    """What every job's program writes; its digest."""
    folder.mkdir()
    draw = random.Random(99)
    for index in range(OUT_FILES):
        (folder / f"{index:04d}.bin").write_bytes(draw.randbytes(OUT_BYTES // OUT_FILES))
    return digest(folder)


def _sum(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.bin")):
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _script(site: SlurmSite, contestant: str, index: int, results: Path) -> Path:
    name, place = f"j{index}", site.near / f"j{index}"
    place.mkdir()
    os.chown(place, site.uid, site.gid)
    there = site.there if contestant == "waystage" else site.rsync_there
    source, destination = there(f"{name}-in"), there(f"{name}-out")
    compute = COMPUTE.format(
        place=place,
        far=site.far,
        name=name,
        subnet=SUBNET,
        nodes=NODES,
        program=programs(site),
        iterations=ITERATIONS,
        time_ms=TIME_S * 1000,
        results=results,
    )
    if contestant == "script":
        body = f"mkdir -p {place}\nrsync -a {source}/ {place}/in/\n{compute}rsync -a {place}/out/ {destination}/\n"
        text = f"#!/bin/bash\nset -e\n{body}"
    else:
        text = (
            "#!/bin/bash\n"
            f"#BB_LUA stage_in source={source} destination={place}/in\n"
            f"#BB_LUA stage_out source={place}/out destination={destination}\n"
            f"{compute}"
        )
    path = site.folder / f"{contestant}-{name}.sh"
    path.write_text(text)
    return path


def _wait(site: SlurmSite, ids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        states = site.states(ids)
        if all(state == "COMPLETED" for state in states.values()):
            return
        bad = {
            job: state
            for job, state in states.items()
            if state in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        }
        if bad:
            job = next(iter(bad))
            output = site.near / f"job-{job}.out"
            words = output.read_text(errors="replace")[-300:] if output.exists() else ""
            raise BenchError(f"job {job} is {bad[job]}: {words}")
        if time.monotonic() > deadline:
            raise BenchError(f"jobs are not done after {LIMIT_S:.0f} s: {states}")
        time.sleep(0.2)
