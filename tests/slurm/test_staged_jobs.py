"""Jobs of the lab's Slurm whose data the stager moves, as their directives say: from submission to the last byte."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_support import USER, Cluster, until_true
from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import JobFinished, JobStarted
from waystage.worlds.lab.controller_process import start_controller

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Cluster:
    """The lab's Slurm with hooks, the stager and a controller."""
    start_controller(cluster.lab, "ecmp")
    return cluster


@pytest.fixture
def place(site: Cluster) -> Path:
    """A folder of the user with a tree to stage in."""
    folder = site.folder / f"place{time.monotonic_ns()}"
    (folder / "archive").mkdir(parents=True)
    (folder / "archive/a").write_bytes(os.urandom(300_000))
    for each in (folder, *folder.rglob("*")):
        os.chown(each, USER, USER)
    return folder


def directives(place: Path) -> str:
    return (
        f"#BB_LUA stage_in source={place}/archive destination={place}/run/%j/in\n"
        f"#BB_LUA stage_out source={place}/run/%j/out destination={place}/results/%x\n"
    )


def test_data_is_there_before_the_job_and_returns_after_it(site: Cluster, place: Path) -> None:
    seen: list[Any] = []
    config = BackplaneConfig(connect=(site.lab.backplane_endpoint,), name="test")
    with Backplane.open(config) as backplane:
        subscription = backplane.subscribe(None, lambda item: seen.append(item.event))
        job = site.submit(
            directives(place)
            + f"cmp {place}/archive/a $WAYSTAGE_STAGE_IN_1/a && mkdir -p {place}/run/$SLURM_JOB_ID/out\n"
            f"cp $WAYSTAGE_STAGE_IN_1/a {place}/run/$SLURM_JOB_ID/out/b\n",
            "-N2",
            "--job-name=first",
        )
        site.wait(job, "COMPLETED", "FAILED")
        assert (place / "results/first/b").read_bytes() == (place / "archive/a").read_bytes(), site.output(
            job
        )
        assert (place / "results/first/b").stat().st_uid == USER
        until_true(lambda: JobFinished(job_id=str(job)) in seen, lambda: seen)
        subscription.close()
    started = [event for event in seen if isinstance(event, JobStarted) and event.job_id == str(job)]
    assert [event.nodes for event in started] == [("c1", "c2")]
    status = site.run("scontrol", "show", "bbstat", str(job))
    assert status.out.count(" done ") == 2 and str(place) not in status.out


def test_what_the_user_may_not_read_holds_the_job_with_the_reason(site: Cluster, place: Path) -> None:
    secret = site.slurm.folders.munge / "key"
    job = site.submit(f"#BB_LUA stage_in source={secret} destination={place}/key\ntrue\n", "-N1")
    until_true(lambda: site.job(job).get("Priority") == "0", lambda: site.job(job))
    reason = site.run("squeue", "--noheader", f"--jobs={job}", "--format=%r").out
    assert "key" in reason and "burst_buffer/lua" in reason
    assert not (place / "key").exists()
    site.run("scancel", str(job))


def test_a_held_job_runs_once_its_data_is_there_and_it_is_released(site: Cluster, place: Path) -> None:
    (place / "archive").rename(place / "later")
    job = site.submit(
        directives(place) + f"cat {place}/run/$SLURM_JOB_ID/in/a >/dev/null\n", "-N1", "--job-name=r"
    )
    until_true(lambda: site.job(job).get("Priority") == "0", lambda: site.job(job))
    (place / "later").rename(place / "archive")
    until_true(lambda: site.run("scontrol", "release", str(job), uid=0).code == 0)
    until_true(
        lambda: site.job(job).get("JobState") in ("RUNNING", "COMPLETED", "STAGE_OUT"), lambda: site.job(job)
    )
    assert (place / f"run/{job}/in/a").exists()


def test_storage_that_fills_up_holds_the_job_until_there_is_room(site: Cluster, place: Path) -> None:
    small = place / "run"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=200k,uid={USER},gid={USER},mode=755", "small", str(small)],
        check=True,
    )
    try:
        job = site.submit(directives(place) + f"cmp {place}/archive/a $WAYSTAGE_STAGE_IN_1/a\n", "-N1")
        until_true(lambda: site.job(job).get("Priority") == "0", lambda: site.job(job))
        reason = site.run("squeue", "--noheader", f"--jobs={job}", "--format=%r").out
        assert "burst_buffer/lua" in reason and "no space" in reason.lower(), reason
        subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
        until_true(lambda: site.run("scontrol", "release", str(job), uid=0).code == 0)
        found = site.wait(job, "COMPLETED", "FAILED")
        assert found["JobState"] == "COMPLETED", site.output(job)
        until_true(lambda: " done " in site.run("scontrol", "show", "bbstat", str(job)).out)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_a_script_whose_only_directive_is_misspelt_is_refused(site: Cluster, place: Path) -> None:
    done = site.sbatch(f"#bb_lua stage_in source={place} destination={place}/x\ntrue\n")
    assert done.code != 0 and "line 2: #bb_lua is no directive at this site: write #BB_LUA" in done.err


def test_a_typo_is_named_by_sbatch(site: Cluster, place: Path) -> None:
    done = site.sbatch(directives(place).replace("destination", "destinatoin", 1) + "true\n")
    assert done.code != 0 and "line 2: #BB_LUA unknown key 'destinatoin' of stage_in" in done.err


def test_killed_stager_slurmctld_and_slurmd_lose_no_job(site: Cluster, place: Path) -> None:
    job = site.submit(
        directives(place)
        + f"until [ -e {place}/killed ]; do sleep 0.2; done\n"
        + f"mkdir -p {place}/run/$SLURM_JOB_ID/out; cp $WAYSTAGE_STAGE_IN_1/a {place}/run/$SLURM_JOB_ID/out/b\n",
        "-N1",
        "--job-name=kept",
    )
    site.wait(job, "RUNNING")
    # Slurm saves the jobs some seconds after a change: with this one that the job runs.
    comment = f"{job}-was-seen-running"
    site.run("scontrol", "update", f"JobId={job}", f"Comment={comment}", uid=0)
    site.until_saved(comment.encode())
    for name in ("stager", "slurmctld"):
        site.signal(name, signal.SIGKILL)
    site.slurm.start_stager()
    site.slurm.start_controller()
    (place / "killed").touch()
    site.wait(job, "COMPLETED", "FAILED")
    until_true(
        lambda: (place / "results/kept/b").exists(),
        lambda: (site.job(job), site.output(job), site.run("scontrol", "show", "bbstat", uid=0)),
    )
    assert (place / "results/kept/b").read_bytes() == (place / "archive/a").read_bytes()
    site.lab.check()


def test_arrays_heterogeneous_jobs_and_dependents_have_their_data(site: Cluster, place: Path) -> None:
    here = f"{place}/run/%A_%a"
    task = f"{place}/run/${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
    array = site.submit(
        f"#BB_LUA stage_in source={place}/archive destination={here}/in\n"
        f"#BB_LUA stage_out source={here}/in destination={place}/results/%A_%a\n"
        f"test -e {task}/in/a\n",
        "-N1",
        "--array=3-4",
    )
    (place / "het.sh").write_text(
        "#!/bin/bash\n"
        + directives(place)
        + f"cp -r {place}/run/$SLURM_JOB_ID/in {place}/run/$SLURM_JOB_ID/out\n"
    )
    options = ("--output", site.folder / "out-%j", "--job-name=het", "-N1", ":", "-N1")
    submitted = site.run("sbatch", "--parsable", *options, place / "het.sh")
    assert submitted.code == 0, submitted
    het = int(submitted.out)
    follows = site.submit(f"test -e {place}/results/het/a\n", "-N1", f"--dependency=afterburstbuffer:{het}")
    for result in (f"{array}_3/a", f"{array}_4/a", "het/a"):
        until_true((place / "results" / result).exists, lambda: site.run("squeue", "--states=all").out)
    assert site.wait(follows, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"


def test_a_requeued_job_stages_anew_and_a_cancelled_one_keeps_its_results(site: Cluster, place: Path) -> None:
    out = f"{place}/run/$SLURM_JOB_ID/out"
    job = site.submit(
        directives(place) + f"mkdir -p {out}; echo $SLURM_RESTART_COUNT >>{out}/runs; sleep 60\n",
        "-N1",
        "--job-name=again",
    )
    runs = place / f"run/{job}/out/runs"
    until_true(runs.exists, lambda: site.job(job))
    assert site.run("scontrol", "requeue", str(job), uid=0).code == 0
    # Slurm starts a requeued job two minutes later, unless its start time is set.
    site.wait(job, "PENDING")
    until_true(lambda: site.run("scontrol", "update", f"JobId={job}", "StartTime=now", uid=0).code == 0)
    until_true(lambda: len(runs.read_text().splitlines()) == 2, lambda: site.job(job))
    site.run("scancel", str(job))
    kept = place / "results/again/runs"
    until_true(lambda: kept.exists() and len(kept.read_text().splitlines()) == 2, lambda: site.job(job))
