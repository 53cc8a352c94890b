"""Collective I/O of ranks that srun starts, on hosts of the lab's Slurm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from slurm_support import Cluster
from waystage.worlds.lab.commands import run
from waystage.worlds.lab.slurm_conf import MANAGEMENT

EACH = 40_000
"""Blocks of a rank, in turn with those of others: bytes cross between the hosts."""

PROGRAM = f"""
#include <mpi.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {{
    static char data[8 * {EACH}];
    int rank, size;
    MPI_File file;
    MPI_Datatype type, view;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    memset(data, 'a' + rank, sizeof data);
    MPI_Type_vector(8, {EACH}, {EACH} * size, MPI_BYTE, &type);
    MPI_Type_create_resized(type, 0, 8 * {EACH} * size, &view);
    MPI_Type_commit(&view);
    int failed = MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_File_set_view(file, rank * {EACH}, MPI_BYTE, view, "native", MPI_INFO_NULL);
    failed |= MPI_File_write_all(file, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE);
    failed |= MPI_File_close(&file);
    if (rank == 0)
        printf("%d ranks, error %d\\n", size, failed);
    MPI_Finalize();
    return argc == 2 && !failed ? 0 : 1;
}}
"""

PARAMETERS = {
    "OMPI_MCA_btl_tcp_if_include": str(MANAGEMENT),
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "SLURM_OVERCOMMIT": "1",
}


@pytest.fixture
def one_network(cluster: Cluster) -> Iterator[None]:
    """The switches have no controller and so no rules: the hosts are joined by the management network alone."""
    namespaces = [cluster.lab.resources.namespace(host.name) for host in cluster.lab.topology.hosts]
    for state in ("down", "up"):
        for namespace in namespaces:
            run(["ip", "-n", namespace, "link", "set", "eth0", state])
        if state == "down":
            yield


@pytest.mark.lab
@pytest.mark.usefixtures("one_network")
@pytest.mark.parametrize("library, plugin, hosts", [("openmpi", "pmix", 1), ("mpich", "pmi2", 2)])
def test_ranks_of_srun_write_through_aggregators_of_their_hosts(
    cluster: Cluster, library: str, plugin: str, hosts: int
) -> None:
    compiler = shutil.which(f"mpicc.{library}")
    if compiler is None:
        pytest.skip(f"mpicc.{library} is not installed")
    listed = cluster.run("srun", "--mpi=list")
    if plugin not in (listed.out + listed.err).split():
        pytest.skip(f"this Slurm has no plugin {plugin}")
    program, file = cluster.folder / f"write-{library}", cluster.folder / f"data-{library}"
    source = program.with_suffix(".c")
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-O1", "-o", program, source], check=True)
    waystage = f"{sys.executable} -m waystage mpi --io --verbose --mpicc {compiler} --"
    exports = "".join(f"export {name}={value}\n" for name, value in PARAMETERS.items())
    script = f"export XDG_CACHE_HOME={cluster.folder}/cache\n{exports}"
    script += f"{waystage} srun --mpi={plugin} --ntasks-per-node={4 // hosts} {program} {file} 2>&1\n"
    # One host for Open MPI: a step with the plugin pmix does not start on two hosts of the lab.
    # As root: other users may not be allowed to run this interpreter.
    text = cluster.folder / f"job-{library}.sh"
    text.write_text("#!/bin/bash\n" + script)
    sent = cluster.run(
        "sbatch", "--parsable", "--output", cluster.folder / "out-%j", f"-N{hosts}", text, uid=0
    )
    assert sent.code == 0, sent
    job = int(sent.out)
    state = cluster.wait(job, "COMPLETED", "FAILED", "TIMEOUT")["JobState"]
    out = cluster.output(job)
    assert (state, "4 ranks, error 0" in out) == ("COMPLETED", True), out[-3000:]
    assert ": through aggregators, " in out and "does it" not in out, out
    assert file.read_bytes() == b"".join(bytes([97 + rank]) * EACH for rank in range(4)) * 8
