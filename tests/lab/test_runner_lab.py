"""The main job on a real lab: switches, MPI and files; and everything that can go wrong with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import wait_until
from waystage.experiment import results
from waystage.worlds.lab.resources import LabResources

pytestmark = pytest.mark.lab

LAB = "t_runner"

SMALL = f"""\
name: small
topology: paper
policies: [link-separation]
sets: 1
jobs:
  count: 2
  nodes: 3
  placement: [[c4, c1, c5], [c6, c2, c3]]
  arrivals: {{distribution: fixed, mean_s: 1.0}}
  stage_in: {{bytes: 2 MB}}
  compute: {{program: alltoall, iterations: 5, message: 200 kB}}
  stage_out: {{bytes: 2 MB}}
limits: {{staging_s: 60, compute_s: 60}}
lab: {{name: {LAB}}}
"""


def start(folder: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "small.yaml").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-m", "waystage", "run", "small.yaml", "--out", "out", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 150) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err


def endless() -> str:
    """Jobs that run for longer than any test."""
    text = SMALL.replace("iterations: 5", "iterations: 1000000").replace("compute_s: 60", "compute_s: 600")
    assert "1000000" in text and "600" in text
    return text


def run(folder: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    return finish(start(folder, text, *arguments))


def program(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"./{name}"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    yield
    left = LabResources(LAB).anything_left
    if left:
        LabResources(LAB).remove_all(unmount_netns=False)
    assert not left


def wait_for_jobs(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the first set's controller is ready and jobs run."""
    staged = LabResources(LAB).run_dir / "hosts" / "c4" / "jobs"
    wait_until(lambda: staged.is_dir() and any(staged.iterdir()), process, "a job's files on its node")


def test_jobs_stage_compute_and_are_compared_in_a_report(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, SMALL.replace("[link-separation]", "[ecmp, link-separation]"))
    assert code in (0, 7), (
        err
    )  # 7: this machine was too busy for the numbers to count, which is not the point here
    folder = tmp_path / "out"
    result = results.load(folder)
    assert [job.status for job in result.jobs] == ["done"] * 4
    for job in result.jobs:
        assert job.stage_in_s > 0.1 and job.stage_out_s > 0.1  # 2 MB at 100 Mbit/s take 0.16 s
        assert job.compute_s > 0.1
    switches = [s.to for s in result.switch_overs]
    assert {"on", "off"} == set(switches) and all(s.policy == "link-separation" for s in result.switch_overs)
    samples = results.load_timelines(folder)
    moved = {
        traffic: sum(s.bytes for s in samples if s.traffic == traffic and s.core and s.policy == "ecmp")
        for traffic in ("staging", "mpi")
    }
    # Four stagings of 2 MB cross the core; each of 2 x 5 iterations sends 4 messages of 200 kB across it.
    assert 8e6 < moved["staging"] < 9e6
    assert 8e6 < moved["mpi"] < 9e6
    events = [json.loads(line)["type"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events.count("StagingStarted") == 8 and events.count("JobFinished") == 4
    assert (folder / "report.html").exists() and "report.html" in out
    assert list((folder / "logs").glob("controller-*.log"))


def test_foresee_holds_one_of_two_stagings_in_the_lab_and_lets_it_go_on(tmp_path: Path) -> None:
    text = SMALL.replace("[link-separation]", "[{name: foresee, options: {candidates: [ecmp], hold_s: 60}}]")
    text = text.replace("{distribution: fixed, mean_s: 1.0}", "{distribution: together}")
    # Both are at it for long enough to meet, however late a busy machine begins the second.
    text = text.replace("  stage_in: {bytes: 2 MB}", "  stage_in: {bytes: 60 MB}")
    code, _, err = run(tmp_path, text)
    assert code in (0, 7), err
    folder = tmp_path / "out"
    assert [job.status for job in results.load(folder).jobs] == ["done"] * 2
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    bodies = {kind: [e["body"] for e in events if e["type"] == kind] for kind in {e["type"] for e in events}}
    into = {f["flow_id"]: f for f in bodies["FlowStarted"] if f["source"]["host"] == "storage"}
    assert {f["destination"]["host"] for f in into.values()} == {"c4", "c6"}
    assert {f["job_id"] for f in into.values()} == {"foresee-1-1", "foresee-1-2"}
    assert all(f["traffic"] == "staging" and set(f["controls"]) == {"rate", "pause"} for f in into.values())
    # Over one link both would end late: one is paused until the other has ended.
    adjusted = [(e["flow_id"], e["settings"].get("paused", False)) for e in bodies["FlowAdjusted"]]
    held = adjusted[0][0]
    assert held in into and adjusted[:2] == [(held, True), (held, False)]
    ends = [f["flow_id"] for f in bodies["FlowFinished"] if f["flow_id"] in into]
    assert len(ends) == 2 and ends[1] == held
    assert all(f.get("outcome", "done") == "done" for f in bodies["FlowFinished"])


def test_a_program_that_crashes_and_one_that_hangs_are_failed_jobs_and_the_set_goes_on(
    tmp_path: Path,
) -> None:
    crash = program(tmp_path, "crash", "echo the input deck is wrong >&2; exit 9")
    hang = program(tmp_path, "hang", "sleep 600")
    text = SMALL.replace("  stage_out:", "  mixes:\n    - {name: good}\n  stage_out:").replace(
        "    - {name: good}\n",
        f"    - {{name: crashes, compute: {{program: {crash}}}}}\n    - {{name: hangs, compute: {{program: {hang}}}}}\n",
    )
    code, out, err = run(tmp_path, text.replace("compute_s: 60", "compute_s: 30"))
    assert code == 1, err
    jobs = {job.kind: job for job in results.load(tmp_path / "out").jobs}
    assert jobs["crashes"].status == jobs["hangs"].status == "failed"
    assert "ended with status 9: the input deck is wrong" in jobs["crashes"].cause
    assert "did not end within 30 s" in jobs["hangs"].cause
    assert jobs["hangs"].cause in out


def test_a_job_that_fills_the_disk_fails_with_that_cause_and_can_end_the_set(tmp_path: Path) -> None:
    text = SMALL.replace(f"name: {LAB}", f"name: {LAB}, tmpfs: 5 MB").replace(
        "compute_s: 60", "compute_s: 60, on_failure: stop"
    )
    text = text.replace("stage_in: {bytes: 2 MB}", "stage_in: {bytes: 4 MB}")
    code, _, err = run(tmp_path, text)
    assert code == 1, err
    result = results.load(tmp_path / "out")
    failed = [job for job in result.jobs if job.status == "failed"]
    assert failed and ("space" in failed[0].cause or "do not fit" in failed[0].cause)
    assert any("ended early" in note for note in result.notes)


def test_ctrl_c_takes_everything_down_and_keeps_what_there_is(tmp_path: Path) -> None:
    process = start(tmp_path, endless())
    wait_for_jobs(tmp_path, process)
    os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and "interrupted" in err
    result = results.load(tmp_path / "out")
    assert result.interrupted


@pytest.mark.parametrize(
    ("victim", "words"), [("waystage controller", "controller"), ("ovs-vswitchd", "ovs-vswitchd")]
)
def test_a_controller_or_switch_that_dies_ends_the_run_and_is_named(
    tmp_path: Path, victim: str, words: str
) -> None:
    process = start(tmp_path, endless())
    wait_for_jobs(tmp_path, process)
    mark = str(LabResources(LAB).run_dir)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if victim in line and mark in line:
            os.kill(int(entry.name), signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("waystage: error: ") and words in last
    assert words in results.load(tmp_path / "out").failure


def test_a_second_run_on_the_same_lab_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    first = start(tmp_path, endless())
    wait_for_jobs(tmp_path, first)
    other = tmp_path / "other"
    other.mkdir()
    code, _, err = run(other, SMALL)
    assert code == 6 and LAB in err and not (other / "out").exists()
    os.kill(first.pid, signal.SIGINT)
    assert finish(first)[0] == 130
