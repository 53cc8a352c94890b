"""`--slurm N` on the lab's Slurm: dask-jobqueue submits workers as jobs, which do the work and end with the command."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from copying_trees import snapshot
from slurm_support import Cluster, until_true
from waystage.worlds.lab.slurm_conf import management_address

pytestmark = pytest.mark.lab


def test_jobs_of_the_labs_slurm_copy_a_tree_and_are_gone_afterwards(cluster: Cluster) -> None:
    # Not imported here: that would replace the handler of SIGINT for all later tests of this process.
    if importlib.util.find_spec("dask_jobqueue") is None:
        pytest.skip("dask-jobqueue is not installed")
    source = cluster.folder / "tree"
    for number in range(60):
        folder = source / f"d{number % 6}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(os.urandom(2000 + number))
    before = set(cluster.run("squeue", "-h", "-o", "%i", uid=0).out.split())
    waystage = [sys.executable, "-m", "waystage"]
    # As a site says it in jobqueue.yaml: the management network of the lab has no default route, by which Dask chooses.
    said = f"DASK_JOBQUEUE__SLURM__SCHEDULER_OPTIONS={{'host': '{management_address(0)}'}}"
    words = [
        "copy",
        str(source),
        str(cluster.folder / "copy"),
        "--slurm",
        "2",
        "--nodes-dir",
        str(cluster.folder),
    ]
    without = cluster.run("env", said, *waystage, *words, "--json", uid=0)
    assert without.code != 0 and "jobqueue.slurm.interface" in without.out, without
    said_too = "DASK_JOBQUEUE__SLURM__INTERFACE=mgmt0"
    done = cluster.run("env", said, said_too, *waystage, *words, "--json", uid=0)
    assert done.code == 0, done
    assert snapshot(cluster.folder / "copy") == snapshot(source)
    until_true(lambda: set(cluster.run("squeue", "-h", "-o", "%i", uid=0).out.split()) <= before)
