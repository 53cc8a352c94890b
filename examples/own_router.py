"""A router of one's own in the simulator: run `python examples/own_router.py`.

It makes a small pattern file, as the profiler would, and a scenario on a generated fat tree, and compares a router that takes
the first shortest path with shipped ones. In a scenario file it is called `own_router:FirstPath`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from waystage.patterns import Pattern, Traffic
from waystage.simulate.cluster import Cluster
from waystage.simulate.loading import load
from waystage.simulate.one_run import choice_of, simulate
from waystage.simulate.runner import combinations

SCENARIO = """
duration: 100
topology:
  - kind: xgft
    params: {m: [4, 4], w: [1, 2], slots: 2}
algorithms:
  process_mapper: [block, cyclic]
  router: ["own_router:FirstPath", d-mod-k, greedy-max]
jobs:
  - submit: {distribution: fixed, params: {value: 1}}
    duration: {distribution: fixed, params: {value: 10}}
    count: 1
    trace: ring.wsp
"""


class FirstPath:
    """Each pair on the first of its shortest paths: what a spanning tree would do."""

    def paths(
        self,
        src: np.ndarray,
        dst: np.ndarray,
        amounts: np.ndarray,
        loads: np.ndarray,
        cluster: Cluster,
    ) -> Sequence[Sequence[int]]:
        return [self._path(a, b, cluster) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]

    def _path(self, at: int, goal: int, cluster: Cluster) -> list[int]:
        towards = cluster.switch_distances(cluster.edge_of[goal])
        path: list[int] = []
        while at != goal:
            leaving = np.flatnonzero(cluster.links_from == at).tolist()
            reached = {link: int(cluster.links_to[link]) for link in leaving}
            path.append(min(leaving, key=lambda link: (reached[link] != goal, towards[reached[link]], link)))
            at = reached[path[-1]]
        return path


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
