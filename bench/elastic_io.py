"""One aggregator of many is slowed by 512 us before the third of ten collective writes: does the policy notice?

After Isaila et al., "CLARISSE", section V.B. In the simulator, `elastic-io` against no policy, on
experiments/elastic-io.yaml and variations of it:

- `op_speedup`: mean time of a write under the load without the policy, over that with it once the server map has changed.
- `run_speedup`: total time of the ten writes, with those that were slow before the map changed.
- `x_unloaded`: a write after the map changed, over one before the load.
- `two_run_speedup`: as `run_speedup`, with two loaded aggregators. `back_x_unloaded`: the last ten of sixty writes, where
  the load ends before the tenth, over one before the load: whether the aggregator is used again.
- `noise_run_x_none`: total time without the policy over that with it, where no aggregator is loaded but each is
  faster or slower by 20 % (sigma) from write to write. `all_slow_run_x_none`: where all are loaded.
- `overhead_pct`: live, the time that 10,000 reports take in the state and the policy, over the time between them, one a
  second from each of eight aggregators.

Live, with eight nodes of this machine and S-IOR through `waystage mpi --io` (`_io_live.py`), ten writes, one aggregator
loaded before the third: `live_op_speedup`, `live_run_speedup` and `live_x_unloaded`, as above; medians of writes, since a
file system of the machine is not quiet. The bytes of the file are compared.

$WAYSTAGE_BENCH_KEEP names a folder to keep the results of the runs in.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, load_module
from waystage.controllers.engine import PolicyEngine
from waystage.events import (
    AggregatorReport,
    AggregatorStarted,
    AggregatorUse,
    Envelope,
    IoApplicationStarted,
)
from waystage.experiment.loading import load
from waystage.experiment.results import IoRecord
from waystage.experiment.schema import CollectiveIo, Experiment, SlowAggregator
from waystage.policies.base import load_policy
from waystage.stats import median
from waystage.worlds.sim.runner import SimWorld

FILE = Path(__file__).parents[1] / "experiments" / "elastic-io.yaml"
DELAY_S = 512e-6
LOADED_FROM = 3
AGGREGATORS = 8
LIVE_BYTES = 2 << 20
REPORTS, REPORTS_QUICK = 10_000, 400
TAKES_S = 90, 30


def run(options: BenchOptions) -> dict[str, Any]:
    experiment, _ = load(FILE)
    base = experiment.jobs.collective
    if base is None:
        raise BenchError(f"{FILE.name} has no jobs.collective")
    load_of = [SlowAggregator(aggregator=3, delay_s=DELAY_S, start=LOADED_FROM)]
    two = [*load_of, SlowAggregator(aggregator=6, delay_s=DELAY_S, start=LOADED_FROM)]
    ended = [SlowAggregator(aggregator=3, delay_s=DELAY_S, start=LOADED_FROM, end=10)]
    every = [SlowAggregator(aggregator=n, delay_s=DELAY_S, start=LOADED_FROM) for n in range(AGGREGATORS)]
    cases = {
        "one": _with(base, slow=tuple(load_of)),
        "two": _with(base, slow=tuple(two)),
        "back": _with(base, slow=tuple(ended), operations=60),
        "noise": _with(base, slow=(), noise=0.2, operations=60),
        "all": _with(base, slow=tuple(every)),
    }
    found: dict[str, dict[str, list[IoRecord]]] = {}
    for at, (name, collective) in enumerate(cases.items()):
        options.progress(f"simulating {name}", at / (len(cases) + 1))
        found[name] = _run(experiment, collective)
    one, without = found["one"]["elastic-io"], found["one"]["null"]
    changed = [r for r in one if r.epoch > one[0].epoch]
    if not changed:
        raise BenchError("the server map was never changed: elastic-io has not noticed the load")
    usual = _mean(one[: LOADED_FROM - 1])
    options.progress("cost of reports", 0.9)
    options.progress("live", 0.95)
    live = _live(4 if options.quick else 10)
    figures = live | {
        "op_speedup": _mean(without[LOADED_FROM - 1 :]) / _mean(changed),
        "run_speedup": _total(without) / _total(one),
        "x_unloaded": _mean(changed) / usual,
        "two_run_speedup": _total(found["two"]["null"]) / _total(found["two"]["elastic-io"]),
        "back_x_unloaded": _mean(found["back"]["elastic-io"][-10:]) / usual,
        "noise_run_x_none": _total(found["noise"]["null"]) / _total(found["noise"]["elastic-io"]),
        "all_slow_run_x_none": _total(found["all"]["null"]) / _total(found["all"]["elastic-io"]),
        "overhead_pct": _overhead_pct(REPORTS_QUICK if options.quick else REPORTS),
    }
    times = {
        name: {policy: [round(r.took_s, 4) for r in records] for policy, records in runs.items()}
        for name, runs in found.items()
    }
    changed_before = next(r.op for r in one if r.epoch > one[0].epoch)
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "peers": {"paper_op_speedup": "3.59 to 4.73", "paper_run_speedup": "1.88 to 2.20"},
        "details": {"seconds": times, "first_write_with_the_new_map": changed_before},
    }


def _live(count: int) -> dict[str, float]:
    module = load_module(Path(__file__).with_name("_io_live.py"))
    with tempfile.TemporaryDirectory(prefix="ws-elastic-") as name:
        runs = {
            policy: module.writes(Path(name) / policy, policy, LIVE_BYTES, count, LOADED_FROM - 1)
            for policy in ("null", "elastic-io")
        }
    usual = median(runs["elastic-io"][: LOADED_FROM - 1])
    changed = median(runs["elastic-io"][LOADED_FROM + 1 :] or runs["elastic-io"][-1:])
    return {
        "live_op_speedup": median(runs["null"][LOADED_FROM - 1 :]) / changed,
        "live_run_speedup": sum(runs["null"]) / sum(runs["elastic-io"]),
        "live_x_unloaded": changed / usual,
    }


def _with(base: CollectiveIo, **changes: Any) -> CollectiveIo:
    return msgspec.structs.replace(base, **changes)


def _run(experiment: Experiment, collective: CollectiveIo) -> dict[str, list[IoRecord]]:
    """Operations of the one job, by policy."""
    jobs = msgspec.structs.replace(experiment.jobs, collective=collective)
    changed = msgspec.structs.replace(experiment, jobs=jobs)
    with tempfile.TemporaryDirectory(prefix="waystage-elastic-") as name:
        result = SimWorld().run(
            changed, Path(os.environ.get("WAYSTAGE_BENCH_KEEP", name)), lambda text, part: None
        )
    return {
        policy: sorted((r for r in result.io if r.policy == policy), key=lambda r: r.op)
        for policy in ("null", "elastic-io")
    }


def _mean(records: list[IoRecord]) -> float:
    return sum(r.io_s for r in records) / len(records)


def _total(records: list[IoRecord]) -> float:
    return sum(r.io_s for r in records)


def _overhead_pct(reports: int) -> float:
    """Processor time of the controller for the reports of one application, of the time in which they come."""
    engine = PolicyEngine(load_policy("elastic-io"))
    names = [f"c{n}" for n in range(AGGREGATORS)]
    start = [IoApplicationStarted(app="0/a", agent=name, host=name) for name in names]
    offers = [AggregatorStarted(app="0/a", agent=name, aggregator=name, host=name) for name in names]
    for event in (*start, *offers):
        engine.handle(Envelope(event=event, event_id="", time_ns=1))
    events = []
    for n in range(1, reports + 1):
        use = AggregatorUse(
            app="0/a", aggregator=names[n % AGGREGATORS], bytes=n << 20, busy_ns=n << 20, writes=n
        )
        event = AggregatorReport(agent=names[n % AGGREGATORS], servers=(use,))
        events.append(Envelope(event=event, event_id="", time_ns=n * 10**9 // AGGREGATORS))
    began = time.process_time()
    for item in events:
        engine.handle(item)
    return 100 * (time.process_time() - began) / (reports / AGGREGATORS)
