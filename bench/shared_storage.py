"""Jobs that read from one emulated file system at once: `storage-shares` against no policy, and what was predicted.

Two storage targets of the emulated Nurion (the shape `nurion`, docs/reference/pfs.md). Four jobs, each a `waystage load` of
the same tree with 64 loaders for each target, which is the best number for a job alone. They report to the flow agent of
a global controller, whose policy is `null` or `storage-shares` with the shape's curve; the real loaders obey `SetLoaders`.
`makespan_reduction_pct` is how much sooner the last job ends; `worst_job_x_alone`, the slowest job under the policy over
one alone. `predicted_reduction_pct` is the simulator's, on the same file system.

The simulator predicts every turn of every case. It is given when each load began, as submission times of jobs: a load
that begins alone has all loaders until others come, and the reads that it has in service by then go on. The memory of a
load, which with large files allows fewer reads than it has loaders, is the real one. The real delays of the control plane
are as many times shorter as the servers are slower. `prediction_error_pct` is the largest
difference from the longest of the loads as measured, without the start of their programs; also of `CASES`, with other
numbers of jobs, targets and files, other sizes and loaders: one turn of each in a full run.

Times are real ones; the servers are slowed by a dilation, so that this machine keeps up. A turn whose emulation was late
is not valid. It measures the method, and no Lustre.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, Figures, Turns, take_turns
from waystage.catalog import BuildOptions, build
from waystage.experiment.schema import (
    Compute,
    Distribution,
    Experiment,
    FileSystem,
    Jobs,
    PolicyChoice,
    SimOptions,
    Staging,
)
from waystage.loader.loader import MEMORY_BYTES
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.validity import late_pct
from waystage.worlds.sim.runner import SimWorld

LIMIT_S = 600.0
REQUEST = 1 << 20
"""Of a FUSE client: see docs/reference/pfs.md."""

SCALE = 100
"""The simulated file system and its bytes are as many times smaller: links of no shipped topology carry the real ones."""

OBEY_S, NOTIFY_S = SimOptions().obey_s, SimOptions().notify_s
"""From an action to its effect, and from an event to its journal, in real seconds."""

NONE, OURS = "null", "storage-shares"
TAKES_S = 300, 40


class Case(msgspec.Struct, frozen=True):
    """Loads of a tree of `files`, each by one of `jobs` with `loaders` for each target; servers slower by `dilation`."""

    jobs: int = 4
    targets: int = 2
    files: int = 300
    size: int = 1_000_000
    loaders: int = 64
    dilation: float = 8.0

    @property
    def shape(self) -> pfs.shape.Shape:
        shape = pfs.load("nurion")
        return msgspec.structs.replace(
            shape,
            targets=msgspec.structs.replace(shape.targets, count=self.targets),
            tree=pfs.shape.Tree(files=self.files, size=self.size, files_per_directory=100),
            client=msgspec.structs.replace(shape.client, pages="direct"),
            dilation=self.dilation,
        )


MAIN, QUICK = Case(), Case(dilation=4.0)
CASES = {
    "two jobs on one target": Case(jobs=2, targets=1, files=150, dilation=4.0),
    "six jobs with fewer loaders": Case(jobs=6, targets=3, files=360, size=400_000, loaders=32, dilation=4.0),
    "three jobs of few large files": Case(jobs=3, files=120, size=3_000_000, loaders=48, dilation=3.0),
}


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    main = QUICK if options.quick else MAIN
    with tempfile.TemporaryDirectory(prefix="waystage-shared-") as name:
        folder = Path(name)
        ways = {way: (main, way) for way in (NONE, OURS)} | {
            "alone": (msgspec.structs.replace(main, jobs=1), NONE)
        }
        turns = _turns(options, folder / "main", ways, 2, 1 if options.quick else 2)
        pairs = [(turns, way, *of) for way, of in ways.items()]
        if not options.quick and not options.limit.interrupted:
            others = {f"{what}: {way}": (case, way) for what, case in CASES.items() for way in (NONE, OURS)}
            more = _turns(options, folder / "others", others, 1, 1, lambda way: way.partition(":")[0])
            pairs += [(more, way, *of) for way, of in others.items() if way in more.names]
        predicted = {way: found.median(way, "predicted_s") for found, way, _, _ in pairs}
        measured = {way: found.median(way, "makespan_s") for found, way, _, _ in pairs}
        errors = {way: found.median(way, "predicted_over_measured_pct") for found, way, _, _ in pairs}
    reduction = {
        name: round(100 * (1 - times[OURS] / times[NONE]), 1)
        for name, times in {"makespan": measured, "predicted": predicted}.items()
    }
    return {
        "figures": {
            "makespan_reduction_pct": reduction["makespan"],
            "worst_job_x_alone": round(measured[OURS] / measured["alone"], 2),
            "predicted_reduction_pct": reduction["predicted"],
            "prediction_error_pct": round(max(map(abs, errors.values())), 1),
        },
        "peers": {f"{way} s": round(seconds, 2) for way, seconds in measured.items()},
        "details": turns.details()
        | {
            "predicted_makespan_s": {way: round(seconds, 2) for way, seconds in predicted.items()},
            "predicted_over_measured_pct": {way: round(error, 1) for way, error in errors.items()},
            "emulated": f"servers are {main.dilation:g} times slower than the shape's",
        },
    }


def _turns(
    options: BenchOptions,
    folder: Path,
    ways: dict[str, tuple[Case, str]],
    turns: int,
    parts: int,
    case_of: Callable[[str], str] = lambda way: "",
) -> Turns:
    """Loads, for their share of the time where `parts` of the run are left."""
    (folder / "point").mkdir(parents=True)
    return take_turns(
        options,
        {way: partial(_once, folder, case, policy) for way, (case, policy) in ways.items()},
        turns=turns,
        quick=1,
        invalid=lambda figures: figures["emulation"] or None,
        case=case_of,
        parts=parts,
    )


def _catalog(folder: Path, shape: pfs.shape.Shape) -> Path:
    """Of the shape's tree, which has the same files in every mount."""
    tree = shape.tree
    assert tree is not None
    catalog = folder / f"catalog-{shape.targets.count}-{tree.files}-{tree.size}"
    if not catalog.exists():
        pfs.mount(folder / "point", msgspec.structs.replace(shape, dilation=0.001))
        try:
            build(folder / "point", catalog, BuildOptions())
        finally:
            pfs.unmount(folder / "point", force=True)
    return catalog


def _once(folder: Path, case: Case, policy: str, turn: int) -> Figures:
    """The case's loads at once on a new mount, under a controller with the policy: seconds until the last has ended."""
    point, shape = folder / "point", case.shape
    catalog = _catalog(folder, shape)
    mounted = pfs.mount(point, shape)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="site-", dir=folder) as name,
            _controller(Path(name), policy, shape) as environment,
        ):
            began = time.monotonic()
            words = ["load", catalog, "--tree", point, "--loaders", case.loaders * case.targets]
            loads = [
                _start([*words, "--job", f"job{job}", "--json"], environment) for job in range(case.jobs)
            ]
            with ThreadPoolExecutor(len(loads)) as waiting:
                ended = list(waiting.map(lambda load: _wait(load, began), loads))
        counted = pfs.statistics(mounted)
    finally:
        pfs.unmount(point, force=True)
    reading_s = max(seconds for _, seconds in ended)
    with tempfile.TemporaryDirectory(prefix="sim-", dir=folder) as name:
        predicted_s = _predict(case, policy, sorted(end - seconds for end, seconds in ended), Path(name))
    return {
        "makespan_s": max(seconds for seconds, _ in ended),
        "reading_s": reading_s,
        "predicted_s": predicted_s,
        "predicted_over_measured_pct": 100 * (predicted_s / reading_s - 1),
        "late_pct": round(late_pct(counted), 2),
        "most_on_a_target": max(target["most_in_service"] for target in counted["targets"]),
        "emulation": pfs.why_invalid(counted) or "",
    }


@contextlib.contextmanager
def _controller(folder: Path, policy: str, shape: pfs.shape.Shape) -> Iterator[dict[str, str]]:
    """A global controller with a flow agent; the environment in which programs find the agent."""
    endpoint = f"unixsock-stream/{folder}/backplane.sock"
    environment = os.environ | {"WAYSTAGE_FLOWS": str(folder / "flows.sock")}
    config: dict[str, Any] = {"policy": policy}
    if policy == "storage-shares":
        config["policy_options"] = {"slowdown": [list(point) for point in shape.targets.slowdown]}
    (folder / "site.yaml").write_text(json.dumps(config))
    ready = folder / "ready"
    words = ["controller", "--config", folder / "site.yaml", "--listen", endpoint]
    words += ["--state-dir", folder / "state", "--ready-file", ready]
    process = _start(words, environment)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"the controller did not start: {process.communicate()[1][-500:]}")
            time.sleep(0.05)
        yield environment
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _start(words: list[Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "waystage", *map(str, words)]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _arrivals(starts: list[float]) -> Distribution:
    """Jobs that come at these times, the first at once."""
    gaps = tuple(later - earlier for earlier, later in itertools.pairwise(starts))
    return Distribution(distribution="listed", each_s=gaps) if gaps else Distribution()


def _wait(load: subprocess.Popen[str], began: float) -> tuple[float, float]:
    """Seconds until it ended, and those that it read."""
    told, errors = load.communicate(timeout=LIMIT_S)
    if load.returncode:
        raise BenchError(f"a load ended with status {load.returncode}: {errors[-500:]}")
    return time.monotonic() - began, json.loads(told)["seconds"]


def _predict(case: Case, policy: str, starts: list[float], folder: Path) -> float:
    """The makespan of the same jobs, begun at the same times, in the simulator; in the emulation's seconds."""
    targets, size = case.shape.targets, case.size // SCALE
    # What one loader alone gets: every request of at most 1 MiB costs its latency too.
    requests = -(-case.size // REQUEST)
    alone_s = requests * targets.latency_ms / 1e3 + case.size / targets.read_per_s
    stage_in = Staging(
        bytes=case.files * size,
        file_system="fs",
        stripes="all",
        loaders=case.loaders,
        object_bytes=size,
        memory=MEMORY_BYTES // SCALE,
    )
    system = FileSystem(
        name="fs",
        targets=case.targets,
        bytes_per_s=round(size / alone_s),
        slowdown=targets.slowdown,
    )
    experiment = Experiment(
        name="shared-storage",
        topology="sixteen",
        policies=(PolicyChoice(name=policy),),
        file_systems=(system,),
        jobs=Jobs(
            count=case.jobs,
            nodes=1,
            arrivals=_arrivals([start / case.dilation for start in starts]),
            stage_in=stage_in,
            compute=Compute(program="none"),
        ),
        sim=SimOptions(obey_s=OBEY_S / case.dilation, notify_s=NOTIFY_S / case.dilation),
    )
    result = SimWorld().run(experiment, folder, lambda what, share: None)
    return case.dilation * max(job.stage_in_s for job in result.jobs)
