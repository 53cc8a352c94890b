"""What the tests of the simulator share: small clusters, a small sweep, where PFSim's data would be."""

from __future__ import annotations

from pathlib import Path

from waystage.interconnect.generate import leaf_spine
from waystage.simulate.cluster import Cluster, from_topology

REPOSITORY = Path(__file__).parents[1]
PFSIM = REPOSITORY.parent / "shared" / "data" / "pfsim"
"""PFSim's topology and trace; tests that need them are skipped where they are not."""

SMALL = """\
duration: 100
topology: small.graphml
algorithms:
  router: [d-mod-k, greedy-max]
jobs:
  - submit: {distribution: fixed, params: {value: 10}}
    duration: {distribution: fixed, params: {value: 15}}
    pattern: {kind: all-to-all, ranks: 6, bytes: 1000}
"""


def small_cluster(leaves: int = 2, hosts: int = 4, spines: int = 2) -> Cluster:
    return from_topology(leaf_spine(leaves, hosts, spines, storage_hosts=0))
