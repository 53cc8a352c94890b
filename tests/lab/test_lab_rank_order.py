"""Ranks scattered over edge switches: in another order their large collectives put fewer bytes on uplinks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystage import mpi_paths
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

LIMIT_S = 240
CALLS, COUNT = 12, 65_536
PROGRAM = r"""
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int calls = atoi(argv[1]), count = atoi(argv[2]), rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
    for (int call = 0; call < calls; call++) {
        for (int i = 0; i < count; i++)
            in[i] = rank * i + call;
        MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            if (out[i] != size * (size - 1) / 2 * i + size * call)
                MPI_Abort(MPI_COMM_WORLD, 3);
    }
    MPI_Finalize();
    return 0;
}
"""


@pytest.fixture
def lab(lab_name: str) -> Iterator[Lab]:
    topology = leaf_spine(2, 2, 2, storage_hosts=0, host_bps=100_000_000, uplink_bps=100_000_000)
    with Lab(lab_name, topology, host_bytes=64 << 20) as lab:
        yield lab


def over_uplinks(lab: Lab) -> int:
    """Bytes that edge switches have sent to core switches, and these to them."""
    hosts = set(lab.topology.compute_hosts)
    links = [link for link in lab.links().links if not {d.node for d in link.directions} & hosts]
    assert len(links) == 4
    return sum(d.bytes for link in links for d in link.directions)


def bytes_of_a_run(lab: Lab, program: Path, rank_order: mpi_paths.RankOrder | None) -> int:
    topology = lab.topology
    scattered = [topology.hosts_at[edge][at] for at in range(2) for edge in topology.edge_switches]
    variables = mpi_paths.environment_for(rank_order=rank_order) | {
        **mpi_paths.WATCH,
        # A busy controller answers late: the program waits for it.
        "WAYSTAGE_RANK_ORDER_WAIT_MS": "60000",
        "LD_PRELOAD": ":".join(map(str, mpi_paths.preloads())),
        "WAYSTAGE_FLOWS": str(lab.flow_socket),
    }
    options = [word for name in variables for word in ("-x", f"{name}={variables[name]}")]
    choice = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}
    options += [word for name in choice for word in ("--mca", name, choice[name])]
    before = over_uplinks(lab)
    job = mpi.start(
        lab,
        scattered,
        [str(program), str(CALLS), str(COUNT)],
        options=options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = job.communicate(timeout=LIMIT_S)
    finally:
        job.kill()
    assert job.returncode == 0, said
    return over_uplinks(lab) - before


def test_a_ring_over_scattered_ranks_leaves_the_uplinks_to_others(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(PROGRAM)
    program = tmp_path / "p"
    subprocess.run(["mpicc", "-w", "-O1", "-o", program, tmp_path / "p.c"], check=True)
    start_controller(lab, "collective-paths")
    present = bytes_of_a_run(lab, program, None)
    # Each of four ranks sends 3/2 of the data over a link up and one down.
    assert present >= 2 * 4 * 1.5 * CALLS * COUNT * 4
    ordered = bytes_of_a_run(lab, program, "exact")
    # Two calls of twelve go in the present order, the others send half as much between switches.
    assert ordered < present * 0.75
