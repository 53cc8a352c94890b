"""The simulator against the lab: bytes on every link, times of every job, order of policies.

Links: a program of the CG kind, and two real ones, HPC Challenge and LAMMPS, run on the lab; the switches count their
bytes. The simulator plays, for the first, the shipped program's known pattern; for LAMMPS, a pattern recorded before
with `waystage profile` on this machine's loopback; for HPC Challenge, which draws its rings of ranks anew in every
run, a pattern recorded in the measured run itself. `max_link_error_pct` is the largest relative error of any link
between switches that carried at least 1 % of the busiest one's bytes. Paths do not change there: bytes depend on no
time. Both sides include headers and acknowledgements: the lab counts them, the simulator computes them from the MTU.

Times: staging beside MPI (experiments/staging-collision.yaml). First the lab's costs are measured by jobs that do
nothing else, alone (experiments/sim-costs.yaml) and two at a time on shared links
(experiments/sim-costs-shared.yaml), and given to the simulator: the first by subtracting bytes at link rate; the cost
of a message under load is the one with which simulated jobs take as long as the same jobs of the lab. Nothing is
fitted to the experiment itself. `job_time_error_pct` is the largest relative error of the mean job time of any
policy, `worst_job_pct` that of any single job. `same_order` is 1 where both worlds put the policies in the same
order. One set is one draw of times: the promise is about means.

A run that ends early has fewer sets, and the real programs only where there is time for them; it names those left out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchError, BenchOptions, run_program
from waystage.experiment import results
from waystage.experiment.compare import RunComparison, compare
from waystage.experiment.loading import load
from waystage.experiment.results import RunResult
from waystage.experiment.schema import Compute, Experiment, SimOptions
from waystage.profiler import build
from waystage.stats import median
from waystage.worlds.lab.runner import LabWorld
from waystage.worlds.sim.runner import SimWorld
from waystage.worlds.sim.wire import Wire

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
QUICK_SETS, QUICK_JOBS, QUICK_ITERATIONS = 1, 3, 10
"""Sets; jobs of a set beside staging; iterations of the program of the CG kind."""

LONGEST_MESSAGE_S = 0.1
"""No message costs more beside its bytes."""

LAMMPS = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 16 0 16 0 16
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 50
run 200
"""
"""LAMMPS's own benchmark of a Lennard-Jones melt, smaller: 16,384 atoms, 200 steps, some 300 MB between 8 ranks."""

HPCC_EXAMPLE = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
TAKES_S = 900, 110
LEAST_S = 130, 100


class Application(msgspec.Struct, frozen=True):
    """A real program: how many ranks it gets, a node each, and the script that runs it in its folder.

    `redraws`: the communication pattern differs from run to run, so that only the run itself can be recorded. HPC Challenge
    sends 2 MB at once; links between switches slower than the hosts' would lose some of it, and a switch counts twice
    what is sent again. So it runs where they are as fast.
    """

    nodes: int
    script: Path
    takes_s: float
    """Usual time of all its runs: a run with a limit begins it where that is left."""

    redraws: bool = False
    topology: str = "sixteen"


def run(options: BenchOptions) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
        folder = (options.out or Path(scratch)).resolve()
        costs, costs_run = measure_costs(folder, options)
        costs, messages_run = measure_messages(folder, costs, options)
        times, times_run = compare_times(folder, costs, options)
        links, skipped, link_runs = compare_links(folder, options)
    invalid = [
        reason for result in (costs_run, messages_run, times_run, *link_runs) for reason in result.invalid
    ]
    return {
        "figures": {
            "max_link_error_pct": max(found.max_link_error_pct for found in links.values()),
            "job_time_error_pct": times.max_mean_error_pct,
            "worst_job_pct": times.max_job_error_pct,
            "same_order": int(times.same_order),
        },
        "peers": {},
        "details": {
            "costs": msgspec.to_builtins(costs),
            "links": {name: _links(found) for name, found in links.items()},
            "skipped": skipped,
            "times": {
                "means": [
                    {"policy": e.policy, "quantity": e.quantity, "predicted_s": e.predicted_s}
                    | {"measured_s": e.measured_s, "error_pct": e.error_pct}
                    for e in times.means
                ],
                "order_measured": times.order_measured,
                "order_predicted": times.order_predicted,
                "jobs": times.jobs_compared,
                "max_link_error_pct": times.max_link_error_pct,
            },
            "valid": not invalid,
            "invalid": invalid,
        },
    }


# -- costs ----------------------------------------------------------------------------------------------


def measure_costs(folder: Path, options: BenchOptions) -> tuple[SimOptions, RunResult]:
    """The lab's costs, as medians over the jobs of experiments/sim-costs.yaml."""
    experiment, topology = load(EXPERIMENTS / "sim-costs.yaml")
    result = LabWorld().run(experiment, folder / "costs", options.part("costs", 0.0, 0.05).progress)
    rate = min(link.capacity_bps for link in topology.links) / 8
    return costs_of(result, experiment, rate), result


def costs_of(result: RunResult, experiment: Experiment, rate: float) -> SimOptions:
    """What a job took beside its bytes at `rate` bytes a second; negative remainders of a measurement count as 0."""
    by_kind: dict[str, list[results.JobRecord]] = {}
    for job in result.jobs:
        if job.status == "done":
            by_kind.setdefault(job.kind, []).append(job)
    kinds = {mix.name: mix for mix in experiment.jobs.mixes}
    wire = Wire(experiment.sim.mtu)
    program_s = median([job.compute_s for job in by_kind["nothing"]])
    transfers, notices = [], []
    for kind, jobs in by_kind.items():
        mix = kinds[kind]
        for job in jobs:
            notifications = 2.0
            for staging, took in ((mix.stage_in, job.stage_in_s), (mix.stage_out, job.stage_out_s)):
                if staging is not None:
                    transfers.append(took - wire.data(float(staging.bytes), 1.0) / rate)
                    notifications += 2
            between = job.job_s - job.compute_s - job.staging_s
            notices.append(between / notifications)
    return msgspec.structs.replace(
        experiment.sim,
        program_s=program_s,
        transfer_s=max(0.0, median(transfers)),
        notify_s=max(0.0, median(notices)),
    )


def measure_messages(folder: Path, costs: SimOptions, options: BenchOptions) -> tuple[SimOptions, RunResult]:
    """`costs` with what a message costs where jobs share links and processors: experiments/sim-costs-shared.yaml."""
    experiment, _ = load(EXPERIMENTS / "sim-costs-shared.yaml")
    if options.quick:
        experiment = msgspec.structs.replace(experiment, sets=QUICK_SETS)
    # Times and links come after.
    world = LabWorld(partial(options.limit.steps, parts=4))
    result = world.run(experiment, folder / "messages", options.part("messages", 0.05, 0.1).progress)
    message_s = message_of(_mean_compute_s(result), experiment, costs)
    return msgspec.structs.replace(costs, message_s=message_s), result


def message_of(measured_s: float, experiment: Experiment, costs: SimOptions) -> float:
    """The `message_s`, to 0.1 ms, with which simulated jobs compute for `measured_s` on average; at least 0."""

    def simulated_s(message_s: float) -> float:
        options = msgspec.structs.replace(costs, message_s=message_s)
        with tempfile.TemporaryDirectory(prefix="waystage-bench-") as scratch:
            run = SimWorld().run(msgspec.structs.replace(experiment, sim=options), Path(scratch), _silent)
        return _mean_compute_s(run)

    low, high = 0.0, LONGEST_MESSAGE_S
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if simulated_s(middle) < measured_s else (low, middle)
    return low


def _mean_compute_s(result: RunResult) -> float:
    done = [job.compute_s for job in result.jobs if job.status == "done"]
    return sum(done) / len(done)


# -- times -----------------------------------------------------------------------------------------------


def compare_times(folder: Path, costs: SimOptions, options: BenchOptions) -> tuple[RunComparison, RunResult]:
    experiment, _ = load(EXPERIMENTS / "staging-collision.yaml")
    sets = options.repetitions or (QUICK_SETS if options.quick else experiment.sets)
    policies = experiment.policies[: 2 if options.quick else None]
    jobs = msgspec.structs.replace(experiment.jobs, count=QUICK_JOBS) if options.quick else experiment.jobs
    experiment = msgspec.structs.replace(experiment, sets=sets, policies=policies, jobs=jobs)
    # The links of applications come after: half of the time left is theirs.
    world = LabWorld(partial(options.limit.steps, parts=2))
    measured = world.run(experiment, folder / "times-lab", options.part("times", 0.1, 0.6).progress)
    switching = [s.total_ms / 1e3 for s in measured.switch_overs]
    if switching:  # the one cost that needs separated classes to be seen: of this run, and no job's time
        costs = msgspec.structs.replace(costs, switch_over_s=median(switching))
    simulated = msgspec.structs.replace(experiment, sim=costs)
    SimWorld().run(simulated, folder / "times-sim", _silent)
    return _compared(folder, "times"), measured


# -- links -----------------------------------------------------------------------------------------------


def compare_links(
    folder: Path, options: BenchOptions
) -> tuple[dict[str, RunComparison], dict[str, str], list[RunResult]]:
    """Comparisons by program; why others were skipped; the lab's runs."""
    base, _ = load(EXPERIMENTS / "links-cg.yaml")
    if options.quick:
        options.limit.missing += [f"links under {choice.shown}" for choice in base.policies[1:]]
        compute = msgspec.structs.replace(base.jobs.compute, iterations=QUICK_ITERATIONS)
        jobs = msgspec.structs.replace(base.jobs, compute=compute)
        base = msgspec.structs.replace(base, policies=base.policies[:1], jobs=jobs)
    found: dict[str, RunComparison] = {}
    measured: list[RunResult] = []
    chosen: dict[str, Application] = {}
    skipped: dict[str, str] = {}
    for name, application in _applications(folder):
        if isinstance(application, str):
            skipped[name] = application
        elif options.quick:
            skipped[name] = "takes a minute or more: not in a quick run"
            options.limit.missing.append(f"links under {name}")
        else:
            chosen[name] = application
    takes_s = {"cg": 0.0} | {name: application.takes_s for name, application in chosen.items()}
    programs = options.limit.shares(takes_s, "links under {}".format, least_s=takes_s.__getitem__)
    for number, (name, _) in enumerate(programs):
        part = options.part(name, 0.6 + 0.13 * number, 0.73 + 0.13 * number).progress
        if name == "cg":
            measured.append(LabWorld().run(base, folder / "cg-lab", part))
            SimWorld().run(base, folder / "cg-sim", _silent)
        else:
            measured.append(_measure_application(base, folder, name, chosen[name], part))
        found[name] = _compared(folder, name)
    skipped |= {name: f"ended by {options.limit.stopped} before" for name in takes_s if name not in found}
    return found, skipped, measured


def _measure_application(
    base: Experiment, folder: Path, name: str, application: Application, progress: Any
) -> RunResult:
    """Run it on the lab and play its pattern in the simulator; the lab's result."""
    target = folder / f"{name}.pattern"
    mpirun: tuple[str, ...] = ()
    if application.redraws:
        settings = {"LD_PRELOAD": build(), "WAYSTAGE_PROFILE_OUTPUT": target, "WAYSTAGE_PROFILE_INTERVAL": 0}
        mpirun = tuple(word for key, value in settings.items() for word in ("-x", f"{key}={value}"))
    else:
        _profile(target, application)
    compute = Compute(program=str(application.script), iterations=1)
    experiment = msgspec.structs.replace(
        base,
        name=f"links-{name}",
        topology=application.topology,
        policies=base.policies[:1],
        jobs=msgspec.structs.replace(base.jobs, nodes=application.nodes, compute=compute),
        limits=msgspec.structs.replace(base.limits, compute_s=1200.0),
        lab=msgspec.structs.replace(base.lab, mpirun=mpirun),
    )
    measured = LabWorld().run(experiment, folder / f"{name}-lab", progress)
    failed = [job.cause for job in measured.jobs if job.status == "failed"]
    if failed:
        raise BenchError(f"{name} did not run on the lab: {failed[0]}")
    compute = msgspec.structs.replace(compute, pattern=str(target))
    jobs = msgspec.structs.replace(experiment.jobs, compute=compute)
    SimWorld().run(msgspec.structs.replace(experiment, jobs=jobs), folder / f"{name}-sim", _silent)
    return measured


def _applications(folder: Path) -> Iterator[tuple[str, Application | str]]:
    """Each real program, or why it cannot be run."""
    if shutil.which("hpcc") is None or not HPCC_EXAMPLE.is_file():
        yield "hpcc", "not installed: apt install hpcc"
    else:
        work = _work(folder, "hpcc")
        example = HPCC_EXAMPLE.read_text(encoding="ascii")
        (work / "hpccinf.txt").write_text(example.replace("1000         Ns", "800          Ns"))
        yield "hpcc", Application(4, _script(work, "exec hpcc"), 180.0, redraws=True, topology="paper")
    if shutil.which("lmp") is None:
        yield "lammps", "not installed: apt install lammps"
    else:
        work = _work(folder, "lammps")
        (work / "in.melt").write_text(LAMMPS)
        yield "lammps", Application(8, _script(work, "exec lmp -in in.melt -log none -screen none"), 60.0)


def _work(folder: Path, name: str) -> Path:
    work = folder / f"{name}-work"
    work.mkdir(parents=True, exist_ok=True)
    return work


def _script(work: Path, command: str) -> Path:
    script = work / "run.sh"
    script.write_text(f"#!/bin/sh\ncd '{work}' && {command}\n")
    script.chmod(0o755)
    return script


def _profile(target: Path, application: Application) -> None:
    """Record what the program sends, outside the lab, in one phase."""
    recording = ["--output", target, "--interval", "0", "--quiet"]
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", application.nodes]
    mpirun += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "mpi_yield_when_idle", "1"]
    run_program([sys.executable, "-m", "waystage", "profile", *recording, "--", *mpirun, application.script])


# -- both ------------------------------------------------------------------------------------------------


def _compared(folder: Path, name: str) -> RunComparison:
    sim, lab = folder / f"{name}-sim", folder / f"{name}-lab"
    return compare(
        results.load(sim), results.load(lab), results.load_timelines(sim), results.load_timelines(lab)
    )


def _links(found: RunComparison) -> dict[str, Any]:
    large = [e for e in found.links if e.traffic == "all" and not e.small]
    return {
        "max_error_pct": found.max_link_error_pct,
        "links": len(large),
        "measured_bytes": sum(e.measured_bytes for e in large),
        "predicted_bytes": sum(e.predicted_bytes for e in large),
        "worst": [
            f"{e.policy} {e.node} to {e.peer}: {e.predicted_bytes} for {e.measured_bytes}" for e in large[:3]
        ],
        "notes": found.notes,
    }


def _silent(what: str, share: float) -> None:
    return None
