"""Whom Open MPI's coll/han sends to, on several hosts with several ranks each, is learned from its own messages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flow_support import Heard
from harness import WAIT_S
from learned_pairs_support import PROGRAM, Told
from waystage import events, mpi_paths
from waystage.flows.agent import FlowAgent
from waystage.interconnect.generate import leaf_spine
from waystage.patterns import Pattern
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


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def agent(tmp_path: Path, heard: Heard) -> Iterator[FlowAgent]:
    agent = FlowAgent("n1", tmp_path / "flows.sock", heard.queue.put)
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def lab(lab_name: str) -> Iterator[Lab]:
    topology = leaf_spine(2, 2, 2, storage_hosts=0, host_bps=100_000_000, uplink_bps=100_000_000)
    with Lab(lab_name, topology, host_bytes=64 << 20) as lab:
        yield lab


def test_a_broadcast_of_han_is_learned_though_its_parts_run_on_communicators_of_its_making(
    lab: Lab, agent: FlowAgent, heard: Heard, tmp_path: Path
) -> None:
    start_controller(lab, "ecmp")
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run(["mpicc", "-w", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    variables = mpi_paths.environment_for() | {
        "LD_PRELOAD": ":".join(map(str, mpi_paths.preloads())),
        "WAYSTAGE_FLOWS": str(agent.path),
        "WAYSTAGE_PROFILE_OUTPUT": str(tmp_path / "pattern"),
    }
    options = [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
    options += ["--mca", "coll_han_priority", "100"]
    job = mpi.start(
        lab,
        lab.topology.compute_hosts,
        [str(tmp_path / "p"), "bcast", "6", "4096"],
        processes_per_node=2,
        options=options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    assert job.returncode == 0, said
    published: list[events.Event] = []
    ended = 0
    while ended < len(lab.topology.compute_hosts):
        published.append(heard.queue.get(timeout=WAIT_S))
        ended += isinstance(published[-1], events.MpiProgramFinished)
    told = Told(published, Pattern.read(tmp_path / "pattern"), [])
    (declared,) = told.of("bcast", size=8)
    assert declared.algorithm == "observed"
    assert told.controllers(declared) == told.recorded("bcast")
    assert {(0, 2), (0, 4), (0, 6)} <= told.recorded("bcast")
