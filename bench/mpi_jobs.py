"""MPI applications that run at once, with staging beside, under policies of paths against ECMP.

A conjugate gradient solver (`_cg.c`) and a Fourier transform (`_fft.c`) begin together, with LAMMPS' liquid of atoms on
16 hosts where LAMMPS is installed, and a job's data is staged in from two storage hosts to two nodes of other edge
switches. Programs are unmodified but for ranks that sleep while they wait, and check their results: zeta, residual and
eigenvector; a known transform and its inverse; the energy of a run on one processor. Four edge switches, with two core
switches for 8 hosts and four for 16; every application has ranks at all edge switches, so that all of it crosses
the core. All links of a topology have the same rate, so low that links are what limits: at twice these rates the
emulated switches are, and every policy comes nearer to ECMP.

Ours is `collective-paths` with `demand-separation` as its base: the one places the pairs of collectives, the other knows
of the staging. Either alone is a peer, and so are `link-separation` and `d-mod-k`. `primitive-paths` needs tags, and
`multicast-trees` changes MPI_Bcast alone, which no application calls: they are left out.

Every policy has the hash's seeds 0, 1, 2 by turns, the same in the same turn. A job's time is from the moment at which
all may begin; a makespan is from then to the end of the last, staging included. Ratios are within a turn, and medians
over turns.

`makespan_x_ecmp`: ours, on the topology where it gains least; `makespan_8_x_ecmp` and `makespan_16_x_ecmp` are those of
each. `worst_app_x_ecmp`: the largest ratio of any application's time. `wrong_results`: of all programs and policies.
Peers are the other policies' ratios. Bars: 0.85, 1.02, 0.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _mpi_apps import Application, Outcome, Programs, started

from waystage import mpi_paths
from waystage.backplane import BackplaneError
from waystage.bench import BenchError, BenchOptions, TurnFailed, Turns, installed, take_turns
from waystage.interconnect.generate import leaf_spine
from waystage.jobs.notify import Notifier
from waystage.stats import median
from waystage.topology import Topology
from waystage.worlds.lab import staging
from waystage.worlds.lab.controller_process import last_words
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.session import ControlSession

SHAPES = {8: (2, 2, 25_000_000), 16: (4, 4, 10_000_000)}
"""Hosts for applications: on each of four edge switches, core switches, rate of a link."""

EDGES = 4
CG = {8: (32_768, 4, 4), 16: (16_384, 4, 4)}
"""Unknowns, outer and inner iterations: sums of 128 and 64 KiB."""

FFT = {8: (256, 12), 16: (256, 7)}
"""Rows, iterations: blocks of 64 KiB."""

LAMMPS = 10, 24
"""Cells each way, steps."""

STAGED = {8: 6_000_000, 16: 2_500_000}
"""Bytes from each of two storage hosts: two seconds where nothing is beside."""

TURNS, TURNS_QUICK = 2, 1
SEEDS = 3
TAKES_S = 280, 35
LIMIT_S = 90.0
PATIENCE_S = 30.0
"""For a controller that has no processor to confirm an event."""

OURS, HASH = "collective-paths on demand-separation", "ecmp"


class Policy(NamedTuple):
    name: str
    options: dict[str, Any] = {}
    seeded: bool = True

    @property
    def declares(self) -> bool:
        """Whether programs declare their collectives to it."""
        return self.name == "collective-paths"


POLICIES = {
    OURS: Policy("collective-paths", {"base": "demand-separation"}),
    HASH: Policy("ecmp"),
    "collective-paths": Policy("collective-paths"),
    "d-mod-k": Policy("d-mod-k", seeded=False),
    "link-separation": Policy("link-separation"),
    "demand-separation": Policy("demand-separation"),
}
QUICK_POLICIES = (OURS, HASH, "demand-separation")


def run(options: BenchOptions) -> dict[str, Any]:
    installed("mpirun", "openmpi-bin")
    shapes = [8] if options.quick else list(SHAPES)
    policies = QUICK_POLICIES if options.quick else tuple(POLICIES)
    options.limit.missing += [policy for policy in POLICIES if policy not in policies]
    with tempfile.TemporaryDirectory(prefix="waystage-mpi-jobs-") as folder, contextlib.ExitStack() as stack:
        programs = Programs(Path(folder))
        sets = {hosts: stack.enter_context(_set(hosts, programs, Path(folder))) for hosts in shapes}
        contestants = {
            (policy, _part(hosts)): _of(sets[hosts], POLICIES[policy])
            for hosts in shapes
            for policy in policies
        }
        turns = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK)
    answer = figures(turns, shapes)
    if programs.lammps_missing is not None:
        answer["details"]["skipped"] = programs.lammps_missing
    return answer


def figures(turns: Turns, shapes: Sequence[int]) -> dict[str, Any]:
    """The answer of the benchmark from its turns."""
    found = {
        (policy, hosts): _ratios(turns, policy, hosts)
        for policy, hosts in itertools.product(POLICIES, shapes)
        if policy != HASH and (policy, _part(hosts)) in turns.names
    }
    makespans = {hosts: found[OURS, hosts]["makespan"] for hosts in shapes}
    ratios_of_applications = [
        ratio
        for hosts in shapes
        for name, ratio in found[OURS, hosts].items()
        if name not in ("makespan", "staging")
    ]
    return {
        "figures": {
            "makespan_x_ecmp": round(max(makespans.values()), 3),
            **{f"makespan_{hosts}_x_ecmp": round(ratio, 3) for hosts, ratio in makespans.items()},
            "worst_app_x_ecmp": round(max(ratios_of_applications), 3),
            "wrong_results": sum(row["wrong"] for name in turns.names for row in turns.rows(name)),
        },
        "peers": {
            f"{policy}, {_part(hosts)}: makespan_x_ecmp": round(ratios["makespan"], 3)
            for (policy, hosts), ratios in found.items()
            if policy != OURS
        },
        "details": {
            "x_ecmp": {
                f"{policy}, {_part(hosts)}": {name: round(ratio, 3) for name, ratio in ratios.items()}
                for (policy, hosts), ratios in found.items()
            },
            "link_bps": {str(hosts): SHAPES[hosts][2] for hosts in shapes},
            **turns.details(),
        },
    }


def _part(hosts: int) -> str:
    return f"{hosts} hosts"


def _ratios(turns: Turns, policy: str, hosts: int) -> dict[str, float]:
    """A policy's times over ECMP's with the same seed; the median over turns of each."""
    ours, hashed = ({row["turn"]: row for row in turns.rows((who, _part(hosts)))} for who in (policy, HASH))
    common = [turn for turn in ours if turn in hashed]
    if not common:
        raise BenchError(
            f"{policy}, {hosts} hosts: no turn to compare with ECMP: {'; '.join(turns.dropped())}"
        )
    names = [name for name in ours[common[0]] if name.endswith("_s")]
    return {
        name.removesuffix("_s"): median([ours[turn][name] / hashed[turn][name] for turn in common])
        for name in names
    }


def _of(measured: _Set, policy: Policy) -> Any:
    return lambda turn: measured(policy, turn % SEEDS)


@contextlib.contextmanager
def _set(hosts: int, programs: Programs, folder: Path) -> Iterator[_Set]:
    """The lab with its storage services and the applications of that many hosts."""
    per_edge, cores, rate = SHAPES[hosts]
    # Two storage hosts at the last edge switches, two nodes to stage to at the first.
    topology = leaf_spine(EDGES, per_edge + 1, cores, storage_hosts=2, host_bps=rate, uplink_bps=rate)
    with Lab(f"jobs{hosts}x{os.getpid()}", topology) as lab, staging.StagingServices(lab):
        placed = [(one, _across(topology, columns)) for one, columns in applications(hosts, programs)]
        yield _Set(lab, placed, STAGED[hosts], folder)


def applications(hosts: int, programs: Programs) -> list[tuple[Application, tuple[int, ...]]]:
    """With the places at each edge switch of the hosts that each has."""
    if hosts == 8:
        return [(programs.cg(*CG[hosts]), (0,)), (programs.fft(*FFT[hosts]), (1,))]
    found: list[tuple[Application, tuple[int, ...]]] = [
        (programs.cg(*CG[hosts]), (0, 1)),
        (programs.fft(*FFT[hosts]), (2,)),
    ]
    if programs.lammps_missing is None:
        found.append((programs.lammps(*LAMMPS), (3,)))
    return found


def _across(topology: Topology, columns: tuple[int, ...]) -> list[str]:
    """One host of each edge switch after the other, for each of these places at the switches."""
    return [topology.hosts_at[edge][column] for column in columns for edge in topology.edge_switches]


class _Set:
    """Runs the applications with staging beside, once under a policy."""

    def __init__(
        self, lab: Lab, applications: list[tuple[Application, list[str]]], staged: int, folder: Path
    ) -> None:
        self._lab, self._applications, self._bytes, self._folder = lab, applications, staged, folder
        last = [lab.topology.hosts_at[edge][-1] for edge in lab.topology.edge_switches]
        self._transfers = list(zip(reversed(last), last, strict=True))[: len(last) // 2]
        for storage, _ in self._transfers:
            staging.source_file(lab, storage, staged, 0)
        self._library = mpi_paths.build()
        self._runs = 0

    def __call__(self, policy: Policy, seed: int) -> dict[str, float]:
        self._runs += 1
        options = policy.options | ({"seed": seed} if policy.seeded else {})
        try:
            with ControlSession(self._lab, policy.name, options, name=f"run-{self._runs}") as control:
                try:
                    found = self._run(Notifier(control.backplane, patience_s=PATIENCE_S), policy.declares)
                except BackplaneError as error:
                    control.check()
                    raise TurnFailed(
                        f"{error} The controller's log ends: {last_words(control.log)}"
                    ) from None
        except LabError as error:
            raise TurnFailed(str(error)) from None
        finally:
            staging.remove_job(self._lab, "next")
        begin = min(outcome.began for outcome in found.values())
        seconds = {f"{name}_s": outcome.ended - begin for name, outcome in found.items()}
        wrong = sum(outcome.wrong for outcome in found.values())
        return {**seconds, "makespan_s": max(seconds.values()), "wrong": wrong}

    def _run(self, notifier: Notifier, declares: bool) -> dict[str, Outcome]:
        with contextlib.ExitStack() as stack:
            jobs = []
            for application, nodes in self._applications:
                notifier.job_started(application.name, nodes)
                variables = self._declaring(application.name) if declares else {}
                said = self._folder / f"{application.name}.out"
                jobs.append(stack.enter_context(started(self._lab, application, nodes, variables, said)))
            for job in jobs:
                job.wait_ready()
            for job in jobs:
                job.begin()
            found = {"staging": self._stage(notifier)}
            for job in jobs:
                found[job.application.name] = job.outcome(LIMIT_S)
                notifier.job_finished(job.application.name)
        return found

    def _declaring(self, job: str) -> dict[str, str]:
        return mpi_paths.environment_for(job) | {
            "LD_PRELOAD": str(self._library),
            "WAYSTAGE_FLOWS": str(self._lab.flow_socket),
        }

    def _stage(self, notifier: Notifier) -> Outcome:
        """Data of a job that begins next, to nodes where it already is."""
        began = time.time()
        notifier.job_started("next", [node for _, node in self._transfers])
        notifier.staging_started("next", bytes=self._bytes * len(self._transfers))
        moving: list[staging.Transfer] = []
        try:
            for storage, node in self._transfers:
                moving.append(staging.stage(self._lab, "next", "in", node, storage=storage, size=self._bytes))
            for transfer in moving:
                # Waits for the bytes and verifies that all have arrived.
                transfer.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise TurnFailed(f"staging did not end in {LIMIT_S:g} s") from None
        finally:
            for transfer in moving:
                if not transfer.is_over:
                    transfer.kill()
        ended = time.time()
        notifier.staging_finished("next")
        notifier.job_finished("next")
        return Outcome(began, ended, 0)
