"""Directives on a Slurm without burst buffers: job_submit checks them, prolog and epilog of slurmctld stage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_support import USER, Cluster, until_true

pytestmark = pytest.mark.lab


@pytest.fixture
def place(plain_cluster: Cluster) -> Path:
    folder = plain_cluster.folder / f"place{os.urandom(4).hex()}"
    (folder / "archive").mkdir(parents=True)
    (folder / "archive/a").write_bytes(os.urandom(200_000))
    for each in (folder, *folder.rglob("*")):
        os.chown(each, USER, USER)
    return folder


def test_data_is_staged_by_prolog_and_epilog(plain_cluster: Cluster, place: Path) -> None:
    job = plain_cluster.submit(
        f"#BB_LUA stage_in source={place}/archive destination={place}/%j/in\n"
        f"#BB_LUA stage_out source={place}/%j/out destination={place}/results/%x\n"
        f"set -e\ncmp {place}/archive/a {place}/$SLURM_JOB_ID/in/a\nmv {place}/$SLURM_JOB_ID/in {place}/$SLURM_JOB_ID/out\n",
        "-N1",
        "--job-name=plain",
    )
    plain_cluster.wait(job, "COMPLETED")
    until_true(lambda: (place / "results/plain/a").exists(), lambda: plain_cluster.job(job))
    assert (place / "results/plain/a").stat().st_uid == USER


def test_a_failed_stage_in_holds_the_job_and_stages_nothing_out(plain_cluster: Cluster, place: Path) -> None:
    (place / "out").mkdir()
    os.chown(place / "out", USER, USER)
    job = plain_cluster.submit(
        f"#BB_LUA stage_in source={place}/none destination={place}/in\n"
        f"#BB_LUA stage_out source={place}/out destination={place}/results\ntrue\n",
        "-N1",
    )

    def shown() -> dict[str, str]:
        lines = plain_cluster.run("scontrol", "show", "job", str(job)).out.splitlines()
        return {line.strip().partition("=")[0]: line for line in lines}

    def held() -> bool:
        """In one reading: that it is held, and why."""
        found = shown()
        return "held" in found.get("JobState", "") and "No such file" in found.get("Comment", "")

    until_true(held, shown)
    comment = shown()["Comment"]
    assert "Comment=waystage: " in comment and "none" in comment
    assert not (place / "results").exists()
    plain_cluster.run("scancel", str(job))


def test_a_typo_is_named_by_sbatch(plain_cluster: Cluster, place: Path) -> None:
    done = plain_cluster.sbatch(f"#BB_LUA stagein source={place} destination={place}/x\n")
    assert done.code != 0 and "waystage: line 2: #BB_LUA unknown operation 'stagein'" in done.err
