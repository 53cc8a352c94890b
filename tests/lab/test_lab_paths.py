"""Paths of a real program's collectives, when the program or the controller is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from harness import wait_until
from waystage import mpi_paths
from waystage.interconnect import pipeline
from waystage.interconnect.generate import leaf_spine
from waystage.worlds.lab import mpi
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        shutil.which("mpirun") is None or shutil.which("mpicc") is None,
        reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
    ),
]

LIMIT_S = 120
SEED = 1
"""Under which the hash is worse than what the policy places."""


@pytest.fixture
def lab(lab_name: str) -> Iterator[Lab]:
    topology = leaf_spine(2, 4, 2, storage_hosts=0, host_bps=50_000_000, uplink_bps=50_000_000)
    with Lab(lab_name, topology, host_bytes=64 << 20) as lab:
        yield lab


def started(lab: Lab, iterations: int) -> mpi.MpiJob:
    """Ranks on alternate edge switches, so that the hash has pairs to get wrong."""
    left, right = (lab.topology.hosts_at[edge] for edge in lab.topology.edge_switches)
    nodes = [host for pair in zip(left, right, strict=True) for host in pair]
    variables = mpi_paths.environment_for() | {
        **mpi_paths.WATCH,
        "LD_PRELOAD": ":".join(map(str, mpi_paths.preloads())),
        "WAYSTAGE_FLOWS": str(lab.flow_socket),
    }
    options = [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
    options += ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "3"]
    argv = mpi.shipped("allreduce", iterations=iterations, message=200_000)
    return mpi.start(lab, nodes, argv, options=options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def packets(lab: Lab) -> list[int]:
    """Of each rule of a single pair at any edge switch."""
    lines = [
        line
        for edge in lab.topology.edge_switches
        for line in lab.ofctl("dump-flows", edge, f"table={pipeline.SPREAD}").splitlines()
        if f"priority={pipeline.PRIORITY_STEERED}," in line
    ]
    return [int(line.partition("n_packets=")[2].partition(",")[0]) for line in lines]


def steered(lab: Lab) -> int:
    return len(packets(lab))


def test_a_killed_program_gives_its_paths_back(lab: Lab) -> None:
    start_controller(lab, f"collective-paths:seed={SEED}")
    job = started(lab, 100_000)
    try:
        wait_until(lambda: steered(lab) > 0, what="a pair's path")
    finally:
        job.kill()
        job.communicate()
    wait_until(lambda: steered(lab) == 0, what="the end of the killed program's paths")


def test_a_program_goes_on_over_the_paths_in_force_while_the_controller_is_dead(lab: Lab) -> None:
    controller = start_controller(lab, f"collective-paths:seed={SEED}")
    job = started(lab, 250)
    try:
        # By then all ranks have reached their peers: the controller answers ARP, and a new peer is not found without
        # it. A call takes a pair 140 packets, and no rank is in the third before all have ended the first.
        wait_until(lambda: max(packets(lab), default=0) > 1000, what="several calls over placed pairs")
        controller.kill()
        controller.wait()
        before = packets(lab)
        wait_until(
            lambda: sum(packets(lab)) > sum(before) + 50 * len(before), what="a call without controller"
        )
        start_controller(lab, f"collective-paths:seed={SEED}")
        said, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    assert job.returncode == 0, said
    wait_until(lambda: steered(lab) == 0, what="the end of the ended program's paths")
