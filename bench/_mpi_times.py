"""Programs of the benchmarks of MPI collectives: where their ranks are, and the figures that they print.

Arrives: a lab, the order of ranks, a program and mpirun's options.
Leaves: the JSON object that rank 0 prints.
Must not know: what is measured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from waystage.bench import BenchError
from waystage.topology import Topology
from waystage.worlds.lab import mpi
from waystage.worlds.lab.lab import Lab


def ranks(topology: Topology, order: str) -> list[str]:
    """Compute hosts in the order of ranks: `block`, edge switch by edge switch, or on alternate ones."""
    compute = {host.name for host in topology.hosts if host.role == "compute"}
    by_edge = [[h for h in topology.hosts_at[edge] if h in compute] for edge in topology.edge_switches]
    if order == "block":
        return [host for hosts in by_edge for host in hosts]
    return [hosts[at] for at in range(len(by_edge[0])) for hosts in by_edge]


def figures_of(
    lab: Lab, nodes: Sequence[str], argv: Sequence[str], options: Sequence[str], limit_s: float, what: str
) -> dict[str, Any]:
    """Run the program, one rank a node, and return what it prints. Raises BenchError, which names `what` ran."""
    job = mpi.start(lab, nodes, argv, options=options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        job.kill()
        raise BenchError(f"a program with {what} did not end in {limit_s:g} s") from None
    line = next((line for line in said.splitlines() if line.startswith("{")), "")
    if job.returncode != 0 or not line:
        raise BenchError(f"a program with {what} failed: {said[-300:]}")
    found: dict[str, Any] = json.loads(line)
    return found
