"""What it costs to report flows and obey actions, and how many flows one controller handles.

Three parts, all with a real `waystage controller` and its flow agent on a unix socket:

- `overhead_pct`: complete commands `waystage copy` of 100,000 files of 10 KB on the file system of the temporary folder
  (or $WAYSTAGE_BENCH_TREE), reporting to the agent and not reporting (WAYSTAGE_FLOWS=none), in alternating turns; by
  how much the median of the times with reports is above that without. `details` has the same of
  the processor time, which says more on a busy machine.
- `obey_p99_ms`: a policy pauses, resumes and limits a copy on an event. From the publication of the event to the
  engine having applied the action; `stopped_p99_ms`, to the last byte before the pause. The 99th percentiles.
- `events_per_s`: reports of 10,000 running flows, in messages of 100 flows as from agents of 100 flows each, sent as
  fast as one process can, until the controller's snapshot has all of them; `single_flow_events_per_s`, in messages of
  one flow. Reports that the controller drops are not counted.

$WAYSTAGE_BENCH_COPY_SCALE, from 0 to 1, makes the tree smaller; it is in `details`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from waystage._native import TreeCopy
from waystage.backplane import Backplane, BackplaneConfig
from waystage.bench import BenchError, BenchOptions, Figures, Turns, load_module, take_turns
from waystage.events import FlowProgress, FlowStarted, FlowUse, JobFinished, JobStarted
from waystage.flows import FlowDescription, reported
from waystage.native_options.copies import TreeCopyOptions
from waystage.state import State
from waystage.stats import median, percentile

FILES, QUICK_SCALE, TURNS = 100_000, 0.02, 21
ACTIONS, ACTIONS_QUICK = 150, 5
FLOWS, FLOWS_AGENT = 10_000, 100
ROUNDS, ROUNDS_QUICK = 40, 2
SINGLE_ROUNDS = 3
PAUSE_EVERY, PAUSE_S = 50, 0.001

POLICY = '''
from waystage.events import JobFinished, JobStarted, Pause, Resume, SetRate

class Paces:
    """Pauses all flows when a job `pause-N` starts, limits them for `limit-N`, and undoes both at its end."""

    name = "paces"

    def __call__(self, event, state):
        if not isinstance(event, (JobStarted, JobFinished)):
            return []
        begins = isinstance(event, JobStarted)
        if event.job_id.startswith("pause-"):
            return [(Pause if begins else Resume)(flow_id=flow_id) for flow_id in state.flows]
        return [SetRate(flow_id=flow_id, rate_bps=80_000_000 if begins else None) for flow_id in state.flows]
'''
TAKES_S = 300, 15


def run(options: BenchOptions) -> dict[str, Any]:
    scale = QUICK_SCALE if options.quick else float(os.environ.get("WAYSTAGE_BENCH_COPY_SCALE", "1"))
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-flow-", dir=given) as name:
        folder = Path(name)
        with _controller(folder, "null"):
            turns = _copies(options.part("copies", 0.0, 0.7), folder, round(FILES * scale))
        with _controller(folder, "pacing:Paces") as endpoint:
            obeyed = _obeyed(options, folder, endpoint)
        options.progress("flows at one controller", 0.85)
        batched, single = [_handled(options, folder, size) for size in (FLOWS_AGENT, 1)]
    seconds, cpu = turns.medians("seconds"), turns.medians("cpu_s")
    return {
        "figures": {
            "overhead_pct": round(100 * (seconds["with"] / seconds["without"] - 1), 2),
            "obey_p99_ms": round(percentile(obeyed["applied"], 99) * 1e3, 1),
            "stopped_p99_ms": round(percentile(obeyed["stopped"], 99) * 1e3, 1),
            "events_per_s": round(batched["per_s"]),
            "single_flow_events_per_s": round(single["per_s"]),
        },
        "peers": {"without_s": round(seconds["without"], 3)},
        "details": turns.details()
        | {
            "scale": scale,
            "cpu_overhead_pct": round(100 * (cpu["with"] / cpu["without"] - 1), 2),
            "obey_median_ms": round(median(obeyed["applied"]) * 1e3, 2),
            "stopped_median_ms": round(median(obeyed["stopped"]) * 1e3, 2),
            "actions": len(obeyed["applied"]),
            "batched": batched,
            "single": single,
        },
    }


@contextmanager
def _controller(folder: Path, policy: str) -> Iterator[str]:
    """A global controller on sockets in `folder`; gives its endpoint. Its journal is new."""
    (folder / "pacing.py").write_text(POLICY)
    ready, state = folder / "ready", folder / f"state-{time.monotonic_ns()}"
    endpoint = f"unixsock-stream/{folder}/backplane.sock"
    words = [sys.executable, "-m", "waystage", "controller", "--listen", endpoint, "--policy", policy]
    words += ["--state-dir", str(state), "--ready-file", str(ready), "--quiet"]
    with open(folder / "controller.log", "wb") as log:
        process = subprocess.Popen(
            words, env=os.environ | {"PYTHONPATH": str(folder)}, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise BenchError(f"no controller: {(folder / 'controller.log').read_text()[-500:]}")
            time.sleep(0.05)
        yield endpoint
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(state, ignore_errors=True)


def _copies(options: BenchOptions, folder: Path, files: int) -> Turns:
    tree = folder / "small"
    options.progress("making the files", 0.0)
    load_module(Path(__file__).with_name("copy.py")).make_small(tree, files)
    (folder / "copies").mkdir()
    sockets = {"with": str(folder / "flows.sock"), "without": "none"}
    contestants = {name: partial(_copy, name, socket, folder) for name, socket in sockets.items()}
    return take_turns(options, contestants, turns=TURNS, quick=2, warm_up=1)


def _copy(name: str, socket: str, folder: Path, turn: int) -> Figures:
    target = folder / "copies" / f"{turn}-{name}"
    words = [sys.executable, "-m", "waystage", "copy", str(folder / "small"), str(target), "--quiet"]
    os.sync()
    before, began = os.times(), time.monotonic()
    subprocess.run([*words, "--job", "1"], check=True, env=os.environ | {"WAYSTAGE_FLOWS": socket})
    seconds, after = time.monotonic() - began, os.times()
    # Emptied, not removed: ext4 does not reuse an inode for minutes, and checks each that it skips.
    for path in target.rglob("*.dat"):
        os.truncate(path, 0)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu_s": cpu}


class _Stamped:
    """A task, and when it was asked for something."""

    def __init__(self, task: TreeCopy) -> None:
        self._task = task
        self.controls = task.controls
        self.applied = threading.Event()
        self.at = 0.0

    def flow(self) -> Any:
        return self._task.flow()

    def progress(self) -> dict[str, int]:
        return self._task.progress()

    def set_rate(self, bytes_per_s: int | None) -> None:
        self._task.set_rate(bytes_per_s)
        self._stamp()

    def pause(self) -> None:
        self._task.pause()
        self._stamp()

    def resume(self) -> None:
        self._task.resume()

    def _stamp(self) -> None:
        self.at = time.monotonic()
        self.applied.set()


def _obeyed(options: BenchOptions, folder: Path, endpoint: str) -> dict[str, list[float]]:
    """Seconds from an event to the engine having applied the action, and to the last byte before a pause."""
    count = ACTIONS_QUICK if options.quick else ACTIONS
    found: dict[str, list[float]] = {"applied": [], "stopped": []}
    os.environ["WAYSTAGE_FLOWS"] = str(folder / "flows.sock")
    tree, target = folder / "many", folder / "many-copy"
    load_module(Path(__file__).with_name("copy.py")).make_small(tree, 20_000)
    wanted = TreeCopyOptions(workers=4, rate_bytes_per_s=2_000_000)
    with (
        Backplane.open(BackplaneConfig(name="scheduler", connect=(endpoint,))) as backplane,
        TreeCopy(str(tree), str(target), wanted) as task,
        reported(stamped := _Stamped(task), FlowDescription("staging", "copy", job_id="1")),
    ):
        _until(lambda: len(State.restore(bytes(backplane.snapshot().state)).flows) == 1)
        for number in range(count):
            options.progress("actions", 0.7 + 0.15 * number / count)
            for kind in ("pause", "limit"):
                stamped.applied.clear()
                began = time.monotonic()
                backplane.publish(JobStarted(job_id=f"{kind}-{number}", nodes=()))
                if not stamped.applied.wait(10):
                    raise BenchError(f"action {number} ({kind}) had no effect in 10 s")
                found["applied"].append(stamped.at - began)
                if kind == "pause":
                    found["stopped"].append(_last_byte(task) - began)
                backplane.publish(JobFinished(job_id=f"{kind}-{number}"))
                time.sleep(0.05)
        task.cancel()
    return found


def _last_byte(task: TreeCopy) -> float:
    """When the counts last changed, looking every millisecond until they rest for 150 ms."""
    last, at = task.progress()["bytes"], time.monotonic()
    while time.monotonic() - at < 0.15:
        time.sleep(0.001)
        now = task.progress()["bytes"]
        if now != last:
            last, at = now, time.monotonic()
    return at


def _handled(options: BenchOptions, folder: Path, size: int) -> dict[str, float]:
    """Reports a second of 10,000 flows, in messages of `size` flows."""
    flows = FLOWS // 10 if options.quick else FLOWS
    rounds = ROUNDS_QUICK if options.quick else ROUNDS if size > 1 else SINGLE_ROUNDS
    agents = [f"n{number}" for number in range(flows // size)]
    ids = {agent: [f"{agent}:{number}" for number in range(size)] for agent in agents}
    with _controller(folder, "null") as endpoint:
        config = BackplaneConfig(name="agents", connect=(endpoint,), cache_events=2 * FLOWS)
        with Backplane.open(config) as backplane:
            for agent in agents:
                for flow_id in ids[agent]:
                    backplane.publish(FlowStarted(flow_id=flow_id, traffic="io", engine="load", job_id="1"))
            _until(lambda: len(_state(backplane).flows) == flows)
            before = _state(backplane).events
            began, sent = time.monotonic(), 0
            for turn in range(1, rounds + 1):
                for number, agent in enumerate(agents, 1):
                    uses = tuple(
                        FlowUse(flow_id=flow_id, bytes_done=turn, rate_bps=8) for flow_id in ids[agent]
                    )
                    backplane.publish(FlowProgress(agent=agent, flows=uses))
                    if number % PAUSE_EVERY == 0:
                        time.sleep(PAUSE_S)  # a burst overruns the link, where telemetry is dropped
                sent += len(agents)
            sent_s = time.monotonic() - began
            handled, last = 0, began
            while handled < sent and time.monotonic() - last < 2.0 + sent_s:
                if (now := _state(backplane).events - before) != handled:
                    handled, last = now, time.monotonic()
            seconds = last - began
    return {
        "per_s": handled * size / seconds,
        "flows": flows,
        "messages": sent,
        "dropped": sent - handled,
        "sent_s": round(sent_s, 3),
        "seconds": round(seconds, 3),
    }


def _state(backplane: Backplane) -> State:
    return State.restore(bytes(backplane.snapshot(timeout=30.0).state))


def _until(condition: Any, limit_s: float = 60.0) -> None:
    """Wait for it; what does not come in time is missing in the figures."""
    until = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
