"""Two applications that exchange a 3-D array by name, beside ADIOS2's SST and beside files.

Eight writers with a box each and four readers with a slab of the last dimension each exchange versions of a cube of
doubles, at most two of which are held. All ranks are processes of this machine without MPI. `x_files` is how many times as
long the exchange takes by files on the lab's emulated striped file system (four targets of the shape `nurion`,
one file a writer and version), `x_adios2_sst`
by ADIOS2's SST with a queue of two that blocks; `lost` counts versions that a reader missed or read wrongly, in all turns;
`gb_per_s` is the rate of all readers together. The wheel of ADIOS2 has no MPI, so each writer is a stream of one rank. It
is measured where this interpreter, or that of WAYSTAGE_BENCH_ADIOS2, can import it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage._native import CouplingService
from waystage.bench import BenchError, BenchOptions, Figures, TurnFailed, take_turns
from waystage.worlds.lab import pfs

SIDE, SIDE_QUICK = 160, 32
VERSIONS, VERSIONS_QUICK = 8, 3
TURNS, TURNS_QUICK = 5, 1
RANKS = {"write": 8, "read": 4}
LIMIT_S = 300.0
PROGRAM = Path(__file__).with_name("_coupling_rank.py")
TAKES_S = 150, 30


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    side = SIDE_QUICK if options.quick else SIDE
    versions = VERSIONS_QUICK if options.quick else VERSIONS
    with tempfile.TemporaryDirectory(prefix="waystage-coupling-") as name:
        contestants = {
            "waystage": partial(_coupled, Path(name), side, versions),
            "files": partial(_by_files, Path(name), side, versions),
        }
        python = _adios2()
        if python is not None:
            contestants["adios2"] = partial(_by_adios2, python, Path(name), side, versions)
        turns = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK)
    ours = turns.median("waystage", "seconds")
    figures = {
        "x_files": round(turns.ratio("files", "waystage", "seconds"), 2),
        "lost": int(sum(turns.values("waystage", "lost"))),
        "gb_per_s": round(versions * side**3 * 8 / ours / 1e9, 3),
    }
    peers = {"files_s": round(turns.median("files", "seconds"), 3), "waystage_s": round(ours, 3)}
    if python is not None:
        figures["x_adios2_sst"] = round(turns.ratio("adios2", "waystage", "seconds"), 2)
        peers["adios2_sst_s"] = round(turns.median("adios2", "seconds"), 3)
    return {
        "figures": figures,
        "peers": peers,
        "details": turns.details() | {"cells": [side] * 3, "versions": versions, "ranks": RANKS},
    }


def _adios2() -> str | None:
    """An interpreter that has ADIOS2."""
    for python in (os.environ.get("WAYSTAGE_BENCH_ADIOS2"), sys.executable):
        if (
            python
            and subprocess.run([python, "-c", "import adios2.bindings"], capture_output=True).returncode == 0
        ):
            return python
    return None


def _coupled(scratch: Path, side: int, versions: int, turn: int) -> Figures:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        socket, token = Path(name) / "node", secrets.token_hex(32)
        service = CouplingService(Path(f"{socket}.coupling"), token)
        try:
            environment = {
                "WAYSTAGE_IO_SOCKET": str(socket),
                "WAYSTAGE_IO_TOKEN": token,
                "WAYSTAGE_COUPLING": f"{name}/names",
            }
            return _ranks("waystage", sys.executable, side, versions, Path(name), environment)
        finally:
            service.stop()


def _by_files(scratch: Path, side: int, versions: int, turn: int) -> Figures:
    nurion = pfs.load("nurion")
    shape = msgspec.structs.replace(
        nurion,
        targets=msgspec.structs.replace(nurion.targets, count=4),
        layout=msgspec.structs.replace(
            nurion.layout, parts=(pfs.shape.LayoutPart(stripes="all", stripe_size=1 << 20),)
        ),
        client=msgspec.structs.replace(nurion.client, pages="direct"),
        tree=None,
    )
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        point, stored = Path(name) / "point", Path(name) / "files"
        point.mkdir()
        stored.mkdir()
        pfs.mount(point, shape, stored)
        try:
            return _ranks("files", sys.executable, side, versions, point, {})
        finally:
            pfs.unmount(point, force=True)


def _by_adios2(python: str, scratch: Path, side: int, versions: int, turn: int) -> Figures:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        return _ranks("adios2", python, side, versions, Path(name), {})


def _ranks(
    method: str, python: str, side: int, versions: int, folder: Path, environment: dict[str, str]
) -> Figures:
    """Seconds from the moment when all ranks are connected until the last has finished."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = [
        subprocess.Popen(
            [python, str(PROGRAM), method, role, str(rank), str(side), str(versions), str(folder)],
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            **pipes,  # type: ignore[call-overload]
        )
        for role, count in RANKS.items()
        for rank in range(count)
    ]
    deadline = time.monotonic() + LIMIT_S
    try:
        for rank in ranks:
            if rank.stdout.readline() != "ready\n":
                raise TurnFailed(f"{method}: {rank.stderr.read()[-500:]}")
        began = time.monotonic()
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        found = []
        for rank in ranks:
            out, err = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if rank.returncode != 0 or not out.strip():
                raise TurnFailed(f"{method}: {err[-500:]}")
            found.append(json.loads(out.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise TurnFailed(f"{method}: not finished after {LIMIT_S:.0f} s") from None
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    lost = sum(one["lost"] for one in found)
    if lost and method != "waystage":
        raise TurnFailed(f"{method}: {lost} versions were wrong")
    return {"seconds": max(one["ended"] for one in found) - began, "lost": lost}
