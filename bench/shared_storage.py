"""Four jobs that read from one emulated file system at once: `storage-shares` against no policy.

Two storage targets of the emulated Nurion (the shape `nurion`, docs/reference/pfs.md). Four jobs, each a `waystage load` of
the same tree with 64 loaders for each target, which is the best number for a job alone. They report to the flow agent of
a global controller, whose policy is `null` or `storage-shares` with the shape's curve; the real loaders obey `SetLoaders`.
`makespan_reduction_pct` is how much sooner the last job ends; `worst_job_x_alone`, the slowest job under the policy over
one alone. `predicted_reduction_pct` is the simulator's, on the same file system.

Times are real ones; the servers are slowed by `DILATION`, so that this machine keeps up. A turn whose emulation was late
is not valid. It measures the method, and no Lustre.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, Figures, take_turns
from waystage.catalog import BuildOptions, build
from waystage.experiment.schema import Compute, Experiment, FileSystem, Jobs, PolicyChoice, Staging
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.validity import late_pct
from waystage.worlds.sim.runner import SimWorld

JOBS, TARGETS, LOADERS = 4, 2, 64
FILES, FILES_QUICK, SIZE = 300, 60, 1_000_000
DILATION = 8.0
LIMIT_S = 600.0
SCALE = 100
"""The simulated file system and its bytes are as many times smaller: links of no shipped topology carry the real ones."""

WAYS = {"alone": ("null", 1), "null": ("null", JOBS), "storage-shares": ("storage-shares", JOBS)}


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    files = FILES_QUICK if options.quick else FILES
    with tempfile.TemporaryDirectory(prefix="waystage-shared-") as name:
        folder = Path(name)
        (folder / "point").mkdir()
        shape = _shape(files)
        pfs.mount(folder / "point", msgspec.structs.replace(shape, dilation=0.001))
        try:
            build(folder / "point", folder / "catalog", BuildOptions())
        finally:
            pfs.unmount(folder / "point", force=True)
        turns = take_turns(
            options,
            {way: partial(_once, folder, shape, *WAYS[way]) for way in WAYS},
            turns=2,
            quick=1,
            invalid=lambda figures: figures["emulation"] or None,
        )
        predicted = _predict(shape, files, folder / "sim")
    none, ours = turns.median("null", "makespan_s"), turns.median("storage-shares", "makespan_s")
    return {
        "figures": {
            "makespan_reduction_pct": round(100 * (1 - ours / none), 1),
            "worst_job_x_alone": round(ours / turns.median("alone", "makespan_s"), 2),
            "predicted_reduction_pct": round(100 * (1 - predicted["storage-shares"] / predicted["null"]), 1),
        },
        "peers": {
            "null_makespan_s": round(none, 2),
            "storage_shares_makespan_s": round(ours, 2),
            "alone_s": round(turns.median("alone", "makespan_s"), 2),
        },
        "details": turns.details()
        | {
            "predicted_makespan_s": {way: seconds * DILATION for way, seconds in predicted.items()},
            "emulated": f"servers are {DILATION:g} times slower than the shape's",
        },
    }


def _shape(files: int) -> pfs.shape.Shape:
    shape = pfs.load("nurion")
    return msgspec.structs.replace(
        shape,
        targets=msgspec.structs.replace(shape.targets, count=TARGETS),
        tree=pfs.shape.Tree(files=files, size=SIZE, files_per_directory=100),
        client=msgspec.structs.replace(shape.client, pages="direct"),
        dilation=DILATION,
    )


def _once(folder: Path, shape: pfs.shape.Shape, policy: str, jobs: int, turn: int) -> Figures:
    """`jobs` loads at once on a new mount, under a controller with the policy: seconds until the last has ended."""
    point = folder / "point"
    mounted = pfs.mount(point, shape)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="site-", dir=folder) as name,
            _controller(Path(name), policy, shape) as environment,
        ):
            began = time.monotonic()
            words = ["load", folder / "catalog", "--tree", point, "--loaders", LOADERS * TARGETS]
            loads = [_start([*words, "--job", f"job{job}", "--json"], environment) for job in range(jobs)]
            ended = [_wait(load, began) for load in loads]
        counted = pfs.statistics(mounted)
    finally:
        pfs.unmount(point, force=True)
    return {
        "makespan_s": max(ended),
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


def _wait(load: subprocess.Popen[str], began: float) -> float:
    _, errors = load.communicate(timeout=LIMIT_S)
    if load.returncode:
        raise BenchError(f"a load ended with status {load.returncode}: {errors[-500:]}")
    return time.monotonic() - began


def _predict(shape: pfs.shape.Shape, files: int, folder: Path) -> dict[str, float]:
    """Makespans of the same jobs in the simulator, in emulated seconds."""
    size = files * SIZE // SCALE
    stage_in = Staging(bytes=size, file_system="fs", stripes="all", loaders=LOADERS)
    system = FileSystem(
        name="fs",
        targets=TARGETS,
        bytes_per_s=shape.targets.read_per_s // SCALE,
        slowdown=shape.targets.slowdown,
    )
    names = ("null", "storage-shares")
    experiment = Experiment(
        name="shared-storage",
        topology="sixteen",
        policies=tuple(PolicyChoice(name=name) for name in names),
        file_systems=(system,),
        jobs=Jobs(count=JOBS, nodes=1, stage_in=stage_in, compute=Compute(program="none")),
    )
    result = SimWorld().run(experiment, folder, lambda what, share: None)
    return {name: max(job.stage_in_s for job in result.jobs if job.policy == name) for name in names}
