"""How long the simulator takes for what took its predecessor seconds to minutes.

`xgft1024_s`: an extended generalised fat tree of 1,024 hosts, three jobs of 128 ranks that all send to all, D-mod-K.
`cg12_s`: the twelve scenarios of PFSim's example: NAS CG on 128 ranks arriving for 1,000 simulated seconds, linear and random
selection, block and cyclic mapping, D-mod-K and both greedy routers. Both are the median over repetitions of
everything but the start of the interpreter: reading the scenario, topology and trace, and every run in one process.

The predecessor is not run here: its two figures were taken once on a machine of two cores as this one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pfsim_oracle import inputs

from waystage.bench import BenchError, BenchOptions
from waystage.simulate.loading import load
from waystage.simulate.one_run import simulate
from waystage.simulate.runner import combinations

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


def run(options: BenchOptions) -> dict[str, Any]:
    trace, topology = inputs(options)
    texts = {"xgft": XGFT, "cg": CG % (topology.resolve(), trace.resolve())}
    repetitions = options.repetitions or (2 if options.quick else REPETITIONS)
    times: dict[str, list[float]] = {name: [] for name in texts}
    jobs: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        for turn in range(repetitions):
            options.progress(f"repetition {turn + 1} of {repetitions}", turn / repetitions)
            for name, text in texts.items():
                path = Path(scratch) / f"{name}.yaml"
                path.write_text(text, encoding="utf-8")
                begin = time.perf_counter()
                jobs[name] = simulate_all(path)
                times[name].append(time.perf_counter() - begin)
    xgft, cg = (statistics.median(times[name]) for name in ("xgft", "cg"))
    return {
        "figures": {"xgft1024_s": xgft, "cg12_s": cg},
        "peers": {"PFSim, 1,024 hosts, s (quoted)": PFSIM_XGFT_S, "PFSim, CG, s (quoted)": PFSIM_CG_S},
        "details": {
            "faster_xgft1024": PFSIM_XGFT_S / xgft,
            "faster_cg12": PFSIM_CG_S / cg,
            "jobs_xgft1024": jobs["xgft"],
            "jobs_cg12": jobs["cg"],
            "first_xgft1024_s": times["xgft"][0],
            "first_cg12_s": times["cg"][0],
            "times_s": times,
        },
    }


def simulate_all(path: Path) -> int:
    """Every run of a scenario, here; how many jobs were started."""
    loaded = load(path)
    started = 0
    for which in combinations(loaded):
        finished = simulate(loaded, which)
        if finished.status != "done":
            raise BenchError(f"run {which.number} of {path.name} failed: {finished.cause}")
        started += finished.metrics.started
    return started
