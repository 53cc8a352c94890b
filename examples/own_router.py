"""A router of your own in the simulator: run `python examples/own_router.py`.

It writes a small pattern file, as the profiler would, and an experiment on a generated fat tree, and compares its router,
`own_router:LeastLoaded` in the experiment file, with shipped ones. docs/how-to/write-a-router.md explains the steps.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from waystage.patterns import Pattern, Traffic
from waystage.simulate.cluster import Cluster
from waystage.simulate.combinations import choice_of, combinations
from waystage.simulate.loading import load
from waystage.simulate.one_run import simulate
from waystage.simulate.routers.first_path import next_links

SCENARIO = """
duration: 100
topology:
  - kind: xgft
    params: {m: [4, 4], w: [1, 2], slots: 2}
algorithms:
  process_mapper: [block, cyclic]
  router: ["own_router:LeastLoaded", first-path, d-mod-k, greedy-max]
jobs:
  - submit: {distribution: fixed, params: {value: 1}}
    duration: {distribution: fixed, params: {value: 10}}
    count: 1
    trace: ring.wsp
"""


class LeastLoaded:
    """Hop by hop, the least loaded link that begins a shortest path; what this job has placed counts."""

    def paths(
        self,
        src: np.ndarray,
        dst: np.ndarray,
        amounts: np.ndarray,
        loads: np.ndarray,
        cluster: Cluster,
    ) -> Sequence[Sequence[int]]:
        found = []
        for node, destination, amount in zip(src.tolist(), dst.tolist(), amounts.tolist(), strict=True):
            path = []
            while node != destination:
                path.append(min(next_links(cluster, node, destination), key=lambda link: loads[link]))
                node = int(cluster.links_to[path[-1]])
            loads[path] += amount
            found.append(path)
        return found


def ring(ranks: int) -> Pattern:
    """Each rank sends a megabyte to the next and the one after it."""
    src = np.repeat(np.arange(ranks), 2)
    dst = (src + np.tile([1, 2], ranks)) % ranks
    one = np.ones(src.size)
    sent = Traffic.from_rows(0 * src, src, dst, 0 * src, 0 * src, one, one * 1_000_000)
    return Pattern(ranks, sent, sent, np.array([0.0, 1.0]), ("",) * ranks)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        ring(32).write(Path(folder) / "ring.wsp")
        (Path(folder) / "ring.yaml").write_text(SCENARIO, encoding="utf-8")
        loaded = load(Path(folder) / "ring.yaml")
    for which in combinations(loaded):
        run = simulate(loaded, which)
        mapper = choice_of(loaded, which, "process_mapper").name
        router = choice_of(loaded, which, "router").name
        print(f"{mapper:6}  {router:20}  {run.metrics.max_load_bytes / 1e6:5.1f} MB {run.cause}".rstrip())


if __name__ == "__main__":
    main()
