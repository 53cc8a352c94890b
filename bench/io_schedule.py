"""Applications that compute and write in phases share a file system: does a schedule help, and never hurt?

After Isaila et al., "CLARISSE", section V.C, in the simulator, with a live controller for the cost of a grant.

- `write_speedup`: mean time of a write with its wait, without a policy over `io-fcfs`: two equal instances of S-IOR,
  ten phases, I/O about a quarter of the computation (`write_speedup_four`: four instances).
- `interference_i`, `cost_c`: I/O time of an application by that of the same application alone, without and with
  `io-fcfs`, two instances.
- `set10_stretch_x_fair`: mean I/O stretch (I/O time by that alone) of `io-set10` over that of `io-fair`, for frequent,
  medium and rare writers (experiments/io-schedule-sets.yaml).
- `worst_run_x_none`: mean time of the jobs without a policy over that with one, the worst of all schedules and of all
  cases: two, four, I/O longer than computation, a large beside a small application, storage that one
  application cannot fill, one file system per application, and the sets. `worst_job_x_none`: the same of one job.
- `live_write_speedup`, `live_worst_run_x_none`, `live_overhead_pct`: the first two of these for two instances of S-IOR in
  the lab (experiments/io-lab.yaml): real programs, aggregators and controllers, an emulated file system. The last is the
  median wait of operations that found the storage idle under `io-fcfs`, by their time. `live_operation_error_pct`: the
  largest error of the simulator's mean operation, of the policies.
- `grant_ms`: START_IO to GRANT_IO of an operation that need not wait, through the unix socket, the flow agent, the
  backplane and a controller with `io-fcfs`, median, where the grant was not given in advance. `overhead_pct`: that by the time of a write
  of two instances.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions
from waystage.experiment.compare import compare
from waystage.experiment.io_summary import io_figures
from waystage.experiment.loading import load
from waystage.experiment.results import IoRecord, RunResult
from waystage.experiment.schema import Experiment, Mix, PolicyChoice
from waystage.local_client import LocalClient
from waystage.stats import median, percentile
from waystage.worlds.lab.runner import LabWorld
from waystage.worlds.sim.runner import SimWorld

FOLDER = Path(__file__).parents[1] / "experiments"
SCHEDULES = ("io-fcfs", "io-set10", "io-calciom", "io-min-dilation", "io-fair")
LIVE = ("io-fcfs", "io-set10", "io-fair")
QUICK_CASES = ("two", "four", "sets")
"""Those with figures by themselves."""

GRANTS, GRANTS_QUICK = 200, 20
SETTLED_S = 0.1
TAKES_S = 250, 70


def run(options: BenchOptions) -> dict[str, Any]:
    two, _ = load(FOLDER / "io-schedule-2.yaml")
    sets, _ = load(FOLDER / "io-schedule-sets.yaml")
    cases = _cases(two) | {"sets": msgspec.structs.replace(sets, sets=1) if options.quick else sets}
    if options.quick:
        options.limit.missing += [name for name in cases if name not in QUICK_CASES]
        cases = {name: cases[name] for name in QUICK_CASES}
    results: dict[str, RunResult] = {}
    for at, (name, experiment) in enumerate(cases.items()):
        options.progress(f"simulating {name}", 0.8 * at / len(cases))
        results[name] = _simulated(experiment)
    options.progress("live, in the lab", 0.8)
    live, waits = _live(options)
    options.progress("grants of a controller", 0.95)
    grants_ms = _grants(GRANTS_QUICK if options.quick else GRANTS)
    figures_of = {name: io_figures(result) for name, result in results.items()}
    runs = {name: _runs(result) for name, result in results.items()}
    both = figures_of["two"]
    stretch = {policy: figures_of["sets"][policy].factor or 0.0 for policy in figures_of["sets"]}
    grant_ms = median(grants_ms)
    figures = live | {
        "write_speedup": both["null"].io_s / both["io-fcfs"].io_s,
        "write_speedup_four": figures_of["four"]["null"].io_s / figures_of["four"]["io-fcfs"].io_s,
        "interference_i": both["null"].factor or 0.0,
        "cost_c": both["io-fcfs"].factor or 0.0,
        "set10_stretch_x_fair": stretch["io-set10"] / stretch["io-fair"],
        "worst_run_x_none": min(run["mean"] for of in runs.values() for run in of.values()),
        "worst_job_x_none": min(run["worst"] for of in runs.values() for run in of.values()),
        "grant_ms": grant_ms,
        "overhead_pct": 100 * grant_ms / 1000 / both["io-fcfs"].write_s,
    }
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "peers": {
            "paper_write_speedup": "1.32 to 1.98",
            "paper_overhead_pct": 0.02,
            "boito_set10_x_fair": 0.67,
        },
        "details": {
            "runs_x_none": {n: {p: _rounded(r) for p, r in of.items()} for n, of in runs.items()},
            "operations": {
                name: {policy: _rounded(msgspec.to_builtins(found)) for policy, found in of.items()}
                for name, of in figures_of.items()
            },
            "live_seconds": waits,
            "grant_ms_p99": round(percentile(grants_ms, 99), 3),
        },
    }


def _cases(two: Experiment) -> dict[str, Experiment]:
    what = two.jobs.collective
    if what is None:
        raise BenchError("io-schedule-2.yaml has no jobs.collective")
    change = msgspec.structs.replace

    def jobs(**changes: Any) -> Experiment:
        return change(two, jobs=change(two.jobs, **changes))

    fast = change(two.file_systems[0], bytes_per_s=25_000_000)
    small = change(what, bytes=what.bytes // 10, compute_s=4.0, operations=40)
    other = change(two.file_systems[0], name="other")
    apart = jobs(
        mixes=(
            Mix(name="one", collective=what),
            Mix(name="two", collective=change(what, file_system="other")),
        )
    )
    return {
        "two": two,
        "four": jobs(count=4, nodes=3, collective=change(what, aggregators=3)),
        "heavy": jobs(collective=change(what, compute_s=2.0)),
        "large and small": jobs(
            mixes=(Mix(name="large", collective=what), Mix(name="small", collective=small))
        ),
        "links": change(two, file_systems=(fast,)),
        "apart": change(apart, file_systems=(*two.file_systems, other)),
    }


def _live(options: BenchOptions) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Figures of the lab, and of each operation by policy when it came, its wait and its time, s."""
    experiment, _ = load(FOLDER / "io-lab.yaml")
    what = experiment.jobs.collective
    assert what is not None
    jobs = msgspec.structs.replace(
        experiment.jobs, collective=msgspec.structs.replace(what, operations=2 if options.quick else 6)
    )
    schedules = LIVE[:1] if options.quick else LIVE
    options.limit.missing += [f"{name}, live" for name in LIVE[len(schedules) :]]
    policies = tuple(PolicyChoice(name=name) for name in ("null", *schedules))
    lab = msgspec.structs.replace(experiment.lab, name=f"bench{os.getpid()}")
    experiment = msgspec.structs.replace(experiment, jobs=jobs, policies=policies, lab=lab)
    with tempfile.TemporaryDirectory(prefix="waystage-io-live-") as name:
        result = LabWorld().run(experiment, Path(name) / "out", lambda text, part: None)
    failed = [job.cause for job in result.jobs if job.status == "failed"]
    if failed:
        raise BenchError(f"a live run failed: {failed[0]}")
    found = io_figures(result)
    error_pct = compare(_simulated(experiment), result, [], []).max_operation_error_pct
    times = {policy: _job_s(result, policy) for policy in ("null", *schedules)}
    idle = [r for r in result.io if r.policy == "io-fcfs" and r.op > 1 and not _met(r, result.io)]
    figures = {
        "live_write_speedup": found["null"].io_s / found["io-fcfs"].io_s,
        "live_worst_run_x_none": min(times["null"] / times[policy] for policy in schedules),
        "live_operation_error_pct": error_pct,
        "live_interference_i": found["null"].factor or 0.0,
        "live_cost_c": found["io-fcfs"].factor or 0.0,
    }
    if idle:
        figures["live_overhead_pct"] = 100 * median([r.waited_s / r.io_s for r in idle])
    seconds = {
        policy: [
            [round(r.requested_at_s, 3), round(r.waited_s, 4), round(r.took_s, 3)]
            for r in result.io
            if r.policy == policy
        ]
        for policy in times
    }
    return figures, seconds


def _job_s(result: RunResult, policy: str) -> float:
    return sum(job.job_s for job in result.jobs if job.policy == policy)


def _met(record: IoRecord, all_: list[IoRecord]) -> bool:
    """Whether another application was in an operation when this one asked."""
    others = [r for r in all_ if r.policy == record.policy and r.index != record.index]
    return any(r.requested_at_s <= record.requested_at_s <= r.requested_at_s + r.io_s for r in others)


def _simulated(experiment: Experiment) -> RunResult:
    with tempfile.TemporaryDirectory(prefix="waystage-io-") as name:
        return SimWorld().run(experiment, Path(name), lambda text, part: None)


def _runs(result: RunResult) -> dict[str, dict[str, float]]:
    """By schedule: jobs' times without a policy over those with it, of the mean and of the worst job."""
    times: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for job in result.jobs:
        times[job.policy][job.set, job.index] = job.job_s
    none = times["null"]
    return {
        policy: {
            "mean": sum(none.values()) / sum(times[policy].values()),
            "worst": min(none[key] / times[policy][key] for key in none),
        }
        for policy in SCHEDULES
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def _grants(count: int) -> list[float]:
    """Milliseconds from START_IO to GRANT_IO, of two applications that never meet."""
    with tempfile.TemporaryDirectory(prefix="waystage-grants-") as name:
        folder = Path(name)
        ready, log = folder / "ready", folder / "controller.log"
        words = [sys.executable, "-m", "waystage", "controller", "--ready-file", str(ready), "--quiet"]
        words += [
            "--listen",
            f"unixsock-stream/{folder}/backplane.sock",
            "--state-dir",
            str(folder / "state"),
        ]
        words += ["--policy", "io-fcfs:learn=false"]
        with open(log, "wb") as out:
            process = subprocess.Popen(words, env=os.environ.copy(), stdout=out, stderr=out)
        try:
            until = time.monotonic() + 60
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise BenchError(f"no controller: {log.read_text()[-500:]}")
                time.sleep(0.05)
            return _measured(folder / "flows.sock", count)
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(folder / "state", ignore_errors=True)


def _measured(path: Path, count: int) -> list[float]:
    found: list[float] = []
    clients = [LocalClient(path) for _ in range(2)]
    for number, client in enumerate(clients):
        _say(
            client,
            type="io-start",
            app=f"app{number}",
            host=f"c{number}",
            ranks=4,
            aggregators=[f"c{number}"],
        )
    version, weight = [0, 0], [0.0, 0.0]
    for client in clients:  # both write once, so that the controller knows their storage
        _say(client, type="io-request", op=1, bytes=1 << 30, storage="fs")
        _say(client, type="io-complete", op=1, bytes=1 << 30, took_ns=4 * 10**9)
    ops = [1, 1]
    for number, client in enumerate(clients):
        version[number], weight[number] = _settled(client, 0, 0.0)
    while len(found) < count:
        number = 0 if weight[0] <= weight[1] else 1  # who has its grant already need not ask
        client = clients[number]
        ops[number] += 1
        op = ops[number]
        began = time.perf_counter()
        _say(client, type="io-request", op=op, bytes=1 << 30, storage="fs")
        while True:
            line = client.receive(10.0)
            if line is None:
                raise BenchError(f"no grant for operation {op}")
            message = json.loads(line)
            if message["version"] > version[number] and message["weight"] > 0:
                break
        found.append(1000 * (time.perf_counter() - began))
        version[number] = message["version"]
        _say(client, type="io-report", version=version[number])
        _say(client, type="io-complete", op=op, bytes=1 << 30, took_ns=4 * 10**9)
        for each, other in enumerate(clients):
            version[each], weight[each] = _settled(other, version[each], weight[each])
        time.sleep(0.15)  # no faster than the agent takes lines
    for client in clients:
        client.close()
    return found


def _settled(client: LocalClient, version: int, weight: float) -> tuple[int, float]:
    """Until nothing comes for a moment; the last version and weight."""
    while (line := client.receive(SETTLED_S)) is not None:
        message = json.loads(line)
        version, weight = message["version"], message["weight"]
    _say(client, type="io-report", version=version)
    return version, weight


def _say(client: LocalClient, **message: Any) -> None:
    client.send(json.dumps(message).encode())
