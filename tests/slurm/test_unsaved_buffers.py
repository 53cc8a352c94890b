"""Jobs whose slurmctld is killed before it has saved their burst buffers: they go on by themselves.

The moment is chosen by what slurmctld has on disk: its file of buffers cannot be written, its jobs have been saved.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_support import USER, Cluster, until_true

pytestmark = pytest.mark.lab


@pytest.fixture
def site(epilog_cluster: Cluster) -> Iterator[Cluster]:
    """No buffer of the test is in slurmctld's file; the staging service and ends of jobs wait no longer afterwards."""
    blocked = epilog_cluster.slurm.folders.state / "burst_buffer_lua_state.new"
    block(blocked)
    try:
        yield epilog_cluster
    finally:
        (epilog_cluster.folder / "hold").unlink(missing_ok=True)
        epilog_cluster.signal("stager", signal.SIGCONT)
        if blocked.is_dir():
            blocked.rmdir()


@pytest.fixture
def place(site: Cluster) -> Path:
    folder = site.folder / f"place{time.monotonic_ns()}"
    (folder / "archive").mkdir(parents=True)
    (folder / "archive/a").write_bytes(os.urandom(300_000))
    for each in (folder, *folder.rglob("*")):
        os.chown(each, USER, USER)
    return folder


def submit(site: Cluster, place: Path, *options: str) -> int:
    return site.submit(
        f"#BB_LUA stage_in source={place}/archive destination={place}/run/%j/in\n"
        f"#BB_LUA stage_out source={place}/run/%j/out destination={place}/results\n"
        f"until [ -e {place}/go ]; do sleep 0.1; done\n"
        f"mkdir {place}/run/$SLURM_JOB_ID/out; cp $WAYSTAGE_STAGE_IN_1/a {place}/run/$SLURM_JOB_ID/out/b\n",
        "-N1",
        *options,
    )


def block(path: Path) -> None:
    """Put a directory where slurmctld would write, once it has no file there."""

    def made() -> bool:
        try:
            path.mkdir()
        except FileExistsError:
            return False
        return True

    until_true(made, lambda: path)


@contextmanager
def controller_killed(site: Cluster, job: int) -> Iterator[None]:
    """slurmctld is killed, without the job in its file of buffers, and started again."""
    site.signal("slurmctld", signal.SIGKILL)
    file = site.slurm.folders.state / "burst_buffer_lua_state"
    assert b"%d\0" % job not in file.read_bytes()
    file.with_suffix(".new").rmdir()
    yield
    site.slurm.start_controller()


def ends_completed(site: Cluster, job: int, place: Path) -> None:
    found = site.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    assert found["JobState"] == "COMPLETED" and found["Restarts"] == "0"
    assert (place / "results/b").read_bytes() == (place / "archive/a").read_bytes()
    shown = site.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T", uid=0)
    assert shown.out.strip() == "COMPLETED"


@pytest.mark.parametrize("state", ["STAGE_OUT", "COMPLETING"])
def test_a_job_that_has_just_ended_is_staged_out_and_completed(
    site: Cluster, place: Path, state: str
) -> None:
    job = submit(site, place)
    site.wait(job, "RUNNING")
    if state == "COMPLETING":
        (site.folder / "hold").touch()
    site.signal("stager", signal.SIGSTOP)
    moment = time.time()
    (place / "go").touch()
    site.wait(job, state)
    site.until_saved(b"Stage-out in progress", moment)
    with controller_killed(site, job):
        assert not (place / "results").exists()
    (site.folder / "hold").unlink(missing_ok=True)
    site.signal("stager", signal.SIGCONT)
    ends_completed(site, job, place)


def test_a_job_whose_completion_was_not_saved_is_completed(site: Cluster, place: Path) -> None:
    job = submit(site, place)
    site.wait(job, "RUNNING")
    site.signal("stager", signal.SIGSTOP)
    moment = time.time()
    (place / "go").touch()
    site.until_saved(b"Stage-out in progress", moment)
    jobs = site.slurm.folders.state / "job_state.new"
    block(jobs)
    try:
        site.signal("stager", signal.SIGCONT)
        site.wait(job, "COMPLETED")
        with controller_killed(site, job):
            assert b"Stage-out in progress" in jobs.with_suffix("").read_bytes()
    finally:
        jobs.rmdir()
    ends_completed(site, job, place)


def test_a_waiting_job_stages_in_again_and_the_job_that_depends_on_it_runs(
    site: Cluster, place: Path
) -> None:
    site.signal("stager", signal.SIGSTOP)
    moment = time.time()
    job = submit(site, place)
    follows = site.submit("true\n", "-N1", f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes")
    (place / "go").touch()
    site.until_saved(b"staging-in", moment)
    with controller_killed(site, job):
        pass
    site.signal("stager", signal.SIGCONT)
    # Slurm starts such a job a minute later.
    until_true(
        lambda: site.job(job).get("BurstBufferState") in ("complete", "pending"), lambda: site.job(job)
    )
    site.run("scontrol", "update", f"JobId={job}", "StartTime=now", uid=0)
    ends_completed(site, job, place)
    assert site.wait(follows, "COMPLETED", "CANCELLED")["JobState"] == "COMPLETED"
