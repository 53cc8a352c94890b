"""The set of `bench mpi-jobs`, of small jobs: all begin together, end with right results, and leave nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness import bench_module, wait_until
from waystage.interconnect.generate import leaf_spine
from waystage.worlds.lab import staging
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.processes import in_namespaces

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        shutil.which("mpirun") is None or shutil.which("mpicc") is None,
        reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
    ),
]


def command_of(process: int) -> bytes:
    """Nothing where it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_jobs_and_staging_run_at_once_and_their_results_are_right(lab_name: str, tmp_path: Path) -> None:
    jobs = bench_module("mpi_jobs")
    programs = jobs.Programs(tmp_path)
    topology = leaf_spine(2, 3, 2, storage_hosts=1)
    with Lab(lab_name, topology, host_bytes=64 << 20) as lab, staging.StagingServices(lab):
        placed = [
            (programs.cg(1024, 4, 5), jobs._across(topology, (0,))),
            (programs.fft(32, 3), jobs._across(topology, (1,))),
        ]
        files = lab.resources.namespace_files()
        found = jobs._Set(lab, placed, 1_000_000, tmp_path)(jobs.POLICIES[jobs.OURS], 0)
        wait_until(
            lambda: not any(b"mpi" in command_of(process) for process in in_namespaces(files)),
            what="the end of all jobs' processes",
        )
    times = {name: found[name] for name in ("cg_s", "fft_s", "staging_s")}
    assert found["wrong"] == 0 and min(times.values()) > 0
    assert found["makespan_s"] == max(times.values())
