"""An experiment through the lab's Slurm: the same file, jobs by sbatch, live controllers, the lab's results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import Ran, ran
from slurm_support import JOB_LIMIT_S, Cluster, until_true
from waystage.experiment.loading import load
from waystage.experiment.schema import ClusterOptions, Limits
from waystage.experiment.workload import jobs_of_set
from waystage.worlds.cluster.order import JobOrder
from waystage.worlds.lab.controller_process import start_controller

EXPERIMENT = """
name: small
topology: paper
policies: [ecmp]
seed: 1
sets: 1
jobs:
  count: 2
  nodes: 2
  concurrent: 2
  placement: [[c4, c1], [c5, c2]]
  stage_in: {bytes: 1 MB, to: head}
  compute: {program: PROGRAM, iterations: 3, message: 1 kB}
  stage_out: {bytes: 1 MB, to: head}
limits: {staging_s: 60, compute_s: 60}
"""

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def controlled(cluster: Cluster) -> Cluster:
    """The lab's Slurm with a controller, as `lab up --slurm` leaves it."""
    start_controller(cluster.lab, "ecmp")
    return cluster


def words(file: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "waystage", "run", str(file), "--on", "cluster", "--out", str(out)]


def run(cluster: Cluster, folder: Path, program: str = "alltoall", extra: str = "") -> Ran:
    file = folder / "small.yaml"
    file.write_text(EXPERIMENT.replace("PROGRAM", program) + extra)
    environment = {**os.environ, **cluster.slurm.environment}
    return ran([*words(file, folder / "out"), "--json"], env=environment, timeout=200)


def test_jobs_run_through_slurm_and_slurm_reports_them(controlled: Cluster, tmp_path: Path) -> None:
    done = run(controlled, tmp_path)
    assert done.code in (0, 7), done  # 7: the machine was too busy to measure
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["world"] == "cluster"
    jobs = result["jobs"]
    assert [job.get("status", "done") for job in jobs] == ["done", "done"], [job.get("cause") for job in jobs]
    assert {tuple(job["nodes"]) for job in jobs} == {("c4", "c1"), ("c5", "c2")}
    assert all(job["stage_in_s"] > 0 and job["compute_s"] > 0 and job["stage_out_s"] > 0 for job in jobs)
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    started = {
        e["body"]["job_id"] for e in events if e["type"] == "JobStarted" and e["source"] != "cluster-job"
    }
    ended = {e["body"]["job_id"] for e in events if e["type"] == "JobFinished"}
    assert {job["job_id"] for job in jobs} <= started
    assert all(job_id.isdigit() for job_id in started | ended)
    controlled.lab.check()  # the lab's own controller is there again


COLLECTIVE = """
name: written
topology: paper
policies: [io-fcfs]
sets: 1
file_systems: [{name: scratch, targets: 2, bytes_per_s: 200 MB}]
jobs:
  count: 2
  nodes: 2
  concurrent: 2
  placement: [[c4, c1], [c5, c2]]
  collective: {file_system: scratch, bytes: 4 MB, operations: 3, compute_s: 0.2, buffer: 1 MiB, processes_per_node: 2}
limits: {staging_s: 60, compute_s: 90}
"""


def wrote_together(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of the operations, of two jobs with three each."""
    jobs = result["jobs"]
    assert [job.get("status", "done") for job in jobs] == ["done", "done"], [job.get("cause") for job in jobs]
    records: list[dict[str, Any]] = result["io"]
    assert sorted((one.get("index", 0), one["op"]) for one in records) == [
        (index, op) for index in (0, 1) for op in (1, 2, 3)
    ]
    for one in records:
        job = next(job for job in jobs if job["job_id"] == one["job_id"])
        assert job["started_at_s"] < one["requested_at_s"] < job["ended_at_s"]
        assert one["bytes"] == 4_000_000 and one["took_s"] > 0
    return records


def test_collective_io_runs_through_slurm_under_a_schedule(controlled: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "written.yaml"
    file.write_text(COLLECTIVE)
    environment = {**os.environ, **controlled.slurm.environment}
    for turn in ("first", "second"):  # on one lab: nothing of the first is in the way
        out = tmp_path / turn
        done = ran([*words(file, out), "--json"], env=environment, timeout=300)
        assert done.code in (0, 7), done
        result = json.loads((out / "result.json").read_text())
        wrote_together(result)
        assert [one["kind"] for one in result["alone"]] == [result["jobs"][0]["kind"]]
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        job_of = {
            e["body"]["app"]: e["body"]["job_id"] for e in events if e["type"] == "IoApplicationStarted"
        }
        assert {job["job_id"] for job in result["jobs"]} == set(job_of.values())
        ended = [e["body"] for e in events if e["type"] == "IoCompleted"]
        assert sum(body.get("operations", 1) for body in ended) == 6, "the controller knows of each"
    for place in ("pfs", "pfs-data"):
        assert not any((controlled.lab.run_dir / place / "scratch").iterdir())


def test_a_program_that_fails_is_in_the_record(controlled: Cluster, tmp_path: Path) -> None:
    assert run(controlled, tmp_path, "/bin/false").code == 1
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert [job["status"] for job in result["jobs"]] == ["failed", "failed"]
    assert "/false of job" in result["jobs"][0]["cause"]


def test_words_of_sbatch_are_the_cause(controlled: Cluster, tmp_path: Path) -> None:
    assert run(controlled, tmp_path, extra="cluster: {sbatch: [--partition=none]}\n").code == 1
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert "invalid partition" in result["jobs"][0]["cause"].lower()


def test_an_interrupted_run_leaves_no_job_in_slurm(controlled: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        EXPERIMENT.replace("PROGRAM", "alltoall").replace("iterations: 3", "iterations: 3, time_s: 20")
    )
    process = subprocess.Popen(
        words(file, tmp_path / "out"),
        env={**os.environ, **controlled.slurm.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        running = ("squeue", "--noheader", "--states=RUNNING", "--format=%i")
        until_true(lambda: len(controlled.run(*running, uid=0).out.split()) == 2)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(JOB_LIMIT_S) == 130
    finally:
        process.kill()
        process.wait()
    until_true(lambda: not controlled.run("squeue", "--noheader", "--format=%i", uid=0).out.split())


def test_a_slurm_that_is_no_labs_stages_by_copies_on_its_nodes(controlled: Cluster, tmp_path: Path) -> None:
    conf, shared = tmp_path / "slurm.conf", controlled.folder / "store"
    conf.write_bytes(controlled.slurm.folders.conf.read_bytes())  # not where a lab has it
    site = f"""cluster:
  storage_dir: {shared}
  node_dir: {controlled.folder}/nodes
  mpirun: [--mca, btl, "tcp,self", --mca, pml, ob1, --mca, btl_tcp_if_include, 10.57.0.0/16,
    --mca, oob_tcp_if_include, 10.59.0.0/16, --oversubscribe, --mca, mpi_yield_when_idle, "1"]
"""
    text = EXPERIMENT.replace("PROGRAM", "alltoall").replace("to: head", "to: each")
    text = text.replace("limits:", "  io: {bytes: 1 MB, direction: write}\nlimits:")
    file = tmp_path / "site.yaml"
    file.write_text(text + site)
    line = [*controlled.slurm.enter(), *words(file, tmp_path / "out"), "--json"]
    endpoint = {"WAYSTAGE_ENDPOINT": controlled.lab.backplane_endpoint}
    done = ran(line, env={**os.environ, "SLURM_CONF": str(conf), **endpoint}, timeout=200)
    assert done.code == 0, done
    jobs = json.loads((tmp_path / "out/result.json").read_text())["jobs"]
    assert [job.get("status", "done") for job in jobs] == ["done", "done"], [job.get("cause") for job in jobs]
    assert all(job["stage_in_s"] > 0 and job["compute_s"] > 0 and job["stage_out_s"] > 0 for job in jobs)
    assert not any((shared / "jobs").iterdir()) and not any((controlled.folder / "nodes").iterdir())


def test_a_job_that_reaches_no_controller_says_so_in_its_record(tmp_path: Path) -> None:
    order, record = tmp_path / "order.json", tmp_path / "record.json"
    nowhere = f"unixsock-stream/{tmp_path}/none.sock"
    file = tmp_path / "small.yaml"
    file.write_text(EXPERIMENT.replace("PROGRAM", "none"))
    order.write_bytes(
        msgspec.json.encode(
            JobOrder(
                request=jobs_of_set(*load(file), 0)[0],
                nodes=(),
                options=ClusterOptions(storage_dir=str(tmp_path)),
                mpirun=(),
                limits=Limits(),
                policy="ecmp",
                set_index=0,
                endpoint=nowhere,
            )
        )
    )
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "c1"}
    line = [sys.executable, "-m", "waystage.worlds.cluster.job", str(order), str(record)]
    assert ran(line, env={**os.environ, **slurm}).code == 0
    told = json.loads(record.read_text())["record"]
    assert told["status"] == "failed" and told["cause"].startswith("c1: cannot reach ")


def test_a_topology_with_other_nodes_is_refused_before_anything_runs(
    controlled: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(EXPERIMENT.replace("topology: paper", "topology: paper-x2").replace("PROGRAM", "none"))
    done = ran([*words(file, tmp_path / "out")], env={**os.environ, **controlled.slurm.environment})
    assert done.code != 0 and not (tmp_path / "out/slurm").exists()


def test_without_slurm_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(EXPERIMENT.replace("PROGRAM", "alltoall"))
    done = ran(words(file, tmp_path / "out"), env={**os.environ, "SLURM_CONF": str(tmp_path / "none.conf")})
    assert done.code == 1 and done.err.count("\n") == 1 and "--on lab" in done.err
