"""How long the simulator takes for what took its predecessor seconds to minutes.

`xgft1024_s`: an extended generalised fat tree of 1,024 hosts, three jobs of 128 ranks in an all-to-all, D-mod-K.
`cg12_s`: the twelve scenarios of PFSim's example: NAS CG on 128 ranks arriving for 1,000 simulated seconds, linear
and random selection, block and cyclic mapping, D-mod-K and both greedy routers. Both are medians over everything but
the start of the interpreter: reading the scenario, topology and trace, and every run in one process.

The predecessor is not run here: its two figures were taken once on a machine of two cores like this one.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pfsim_oracle import inputs

from waystage.bench import BenchError, BenchOptions, Figures, take_turns, timed
from waystage.simulate.combinations import combinations
from waystage.simulate.loading import load
from waystage.simulate.one_run import simulate

INPUTS = ("trace", "topology")

REPETITIONS = 7

PFSIM_XGFT_S = 327.8
PFSIM_CG_S = 5.15

XGFT = """\
duration: 100.0
topology:
  - kind: xgft
    params: {m: [16, 8, 8], w: [1, 8, 8]}
algorithms:
  router: d-mod-k
jobs:
  - submit: {distribution: fixed, params: {value: 1}}
    duration: {distribution: fixed, params: {value: 1000}}
    count: 3
    pattern: {kind: all-to-all, ranks: 128, bytes: 1048576}
"""

CG = """\
duration: 1000.0
topology: %s
algorithms:
  scheduler: [pfsim.scheduler.FCFSScheduler]
  host_selector: [pfsim.host_selector.LinearHostSelector, pfsim.host_selector.RandomHostSelector]
  process_mapper: [pfsim.process_mapper.LinearProcessMapper, pfsim.process_mapper.CyclicProcessMapper]
  router: [pfsim.router.DmodKRouter, pfsim.router.GreedyRouter, pfsim.router.GreedyRouter2]
jobs:
  - submit: {distribution: pfsim.math.ExponentialDistribution, params: {lambd: 0.1}}
    duration: {distribution: pfsim.math.ExponentialDistribution, params: {lambd: 0.2}}
    trace: %s
"""
TAKES_S = 40, 10


def run(options: BenchOptions) -> dict[str, Any]:
    trace, topology = inputs(options)
    texts = {"xgft1024": XGFT, "cg12": CG % (topology.resolve(), trace.resolve())}
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        scenarios = {name: Path(scratch) / f"{name}.yaml" for name in texts}
        for name, path in scenarios.items():
            path.write_text(texts[name], encoding="utf-8")
        contestants = {name: partial(_measured, path) for name, path in scenarios.items()}
        turns = take_turns(options, contestants, turns=REPETITIONS, quick=2)
    xgft, cg = (turns.median(name, "seconds") for name in texts)
    return {
        "figures": {"xgft1024_s": xgft, "cg12_s": cg},
        "peers": {"PFSim, 1,024 hosts, s (quoted)": PFSIM_XGFT_S, "PFSim, CG, s (quoted)": PFSIM_CG_S},
        "details": turns.details() | {"faster_xgft1024": PFSIM_XGFT_S / xgft, "faster_cg12": PFSIM_CG_S / cg},
    }


def _measured(path: Path, turn: int) -> Figures:
    jobs: list[int] = []
    return timed(lambda: jobs.append(simulate_all(path))) | {"jobs": jobs[0]}


def simulate_all(path: Path) -> int:
    """Every run of a scenario, in this process; returns how many jobs were started."""
    loaded = load(path)
    started = 0
    for which in combinations(loaded):
        finished = simulate(loaded, which)
        if finished.status != "done":
            raise BenchError(f"run {which.number} of {path.name} failed: {finished.cause}")
        started += finished.metrics.started
    return started
