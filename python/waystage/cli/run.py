"""`waystage run`: run an experiment of any kind.

Arrives: an experiment file, the world to run it in, options that override the file.
Leaves: a directory of results, its report, and the comparison as a table.
Must not know: how any world works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.folders import check_folder, default_folder, writing
from waystage.cli.many_nodes import joined, nodes_options

if TYPE_CHECKING:
    from waystage.experiment.schema import Experiment
    from waystage.nodes import Where
    from waystage.task import Progress
    from waystage.worlds.base import World

WORLDS = ("lab", "sim", "cluster")

KEPT = "finished runs are kept, and the same command makes the missing runs"


@dataclass(frozen=True)
class Options:
    """What the command line says instead of the file; None or empty where it says nothing."""

    world: str
    policies: tuple[str, ...]
    sets: int | None
    seed: int | None
    processes: int | None
    agreed: bool
    nodes: Where | None = None
    view_at: str | None = None


@dataclass(frozen=True)
class Planned:
    """An experiment that can be run; `folder` is where its file wants the results. `kept`: what a failure leaves."""

    name: str
    run: Callable[[Path, Progress], object]
    warnings: tuple[str, ...] = ()
    folder: Path | None = None
    kept: str = ""


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--on", "world", type=click.Choice(WORLDS), default="lab", show_default=True, help="World to run in."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="Run only this policy: a name in the file, or a policy's own (repeatable).",
)
@click.option(
    "--sets", type=click.IntRange(min=1), help="Number of job sets for each policy; overrides the file."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of arrivals and hashes; overrides the file.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results [default: results/NAME-TIME].",
)
@click.option(
    "--processes", type=click.IntRange(min=1), help="Concurrent runs of a sweep [default: one per core]."
)
@click.option("--yes", "agreed", is_flag=True, help="Do not ask before more than 100,000 runs of a sweep.")
@click.option(
    "--view",
    "view_at",
    metavar="[HOST:PORT]",
    is_flag=False,
    flag_value="127.0.0.1:8077",
    help="Show the run in a browser while it goes on; the address is printed [default address: 127.0.0.1:8077].",
)
@nodes_options
@output_options
def command(
    experiment: Path,
    world: str,
    policies: tuple[str, ...],
    sets: int | None,
    seed: int | None,
    out: Path | None,
    processes: int | None,
    agreed: bool,
    view_at: str | None,
    nodes: Where | None,
    output: Output,
) -> None:
    """Run EXPERIMENT: a comparison of policies, a sweep over combinations, or a study of storage contention.

    Policies are compared set by set: in the simulator, in the lab, or on a cluster, through the Slurm of SLURM_CONF. Sweeps and contention studies run in the
    simulator (--on sim). A sweep runs every combination of its lists; with --out of an interrupted sweep, only the
    missing runs are made. With --scheduler or --slurm, many nodes make them.

    Prints the comparison and the path of the report. The lab needs root. Exit status: 1 if a job, a run or the lab
    failed, 3 if EXPERIMENT is invalid, 6 if another run uses the lab, 7 if the result is invalid, 130 after
    Ctrl-C; finished job sets and runs are kept.
    """
    from waystage.cli.results import show
    from waystage.experiment.loading import kind_of
    from waystage.experiment.problems import ExperimentError
    from waystage.worlds.base import WorldError

    plan = {"policies": _policies, "sweep": _sweep, "contention": _contention}[kind_of(experiment)]
    try:
        planned = plan(
            experiment, Options(world, policies, sets, seed, processes, agreed, nodes, view_at), output
        )
    except ExperimentError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    folder = out or planned.folder or default_folder(planned.name)
    _check_folder(folder, resumes=bool(planned.kept))
    for warning in planned.warnings:
        output.note(f"warning: {warning}")
    try:
        with output.progress() as progress, writing(folder, planned.kept):
            planned.run(folder, progress)
    except (KeyboardInterrupt, WorldError) as error:
        with writing(folder, planned.kept):
            show(folder, output)
        if isinstance(error, WorldError):
            raise UserError(str(error), _exit_code(error)) from None
        if planned.kept:
            output.note(f"interrupted; the same command with --out {folder} makes the missing runs")
        raise
    with writing(folder, planned.kept):
        status = show(folder, output)
    if status == ExitCode.FAILED and planned.kept and output.quiet and not output.json:
        raise UserError(_first_failure(folder), status)
    if status:
        click.get_current_context().exit(status)


def _policies(path: Path, options: Options, output: Output) -> Planned:
    """Raises ExperimentError."""
    from waystage.experiment.loading import load
    from waystage.topology import slow_links

    if options.nodes is not None:
        raise UserError(
            f"--scheduler and --slurm: {path.name} is no sweep; many nodes run sweeps", ExitCode.USAGE
        )

    loaded, topology = load(path)
    chosen = _adjust(loaded, options)
    slow = slow_links(link.capacity_bps for link in topology.links)
    world = _world(options.world)
    return Planned(
        chosen.name,
        lambda folder, progress: _watched(world, chosen, options.view_at, output, folder, progress),
        (f"topology {topology.name}: {slow}",) if slow else (),
    )


def _watched(
    world: World,
    experiment: Experiment,
    view_at: str | None,
    output: Output,
    folder: Path,
    progress: Progress,
) -> object:
    """Run, shown in a browser if asked for. Raises UserError for an address that cannot be served."""
    if view_at is None:
        return world.run(experiment, folder, progress)
    from waystage.view.running import Running
    from waystage.view.serving import Options as PageOptions
    from waystage.view.serving import Serving, ServingError

    running = Running(f"{experiment.name} ({world.name})", simulated=world.name == "sim")
    try:
        serving = Serving(running.feed, running.fold, PageOptions(listen=view_at))
    except ServingError as error:
        raise UserError(f"--view: {error}", ExitCode.USAGE) from None
    world.watcher = running
    with serving.in_thread():
        output.note(f"open {serving.link}")
        result = world.run(experiment, folder, progress)
    output.note(f"the page has ended with the run: `waystage view {folder}` shows it again")
    return result


def _sweep(path: Path, options: Options, output: Output) -> Planned:
    """Raises ExperimentError."""
    import dataclasses

    import msgspec

    from waystage.simulate.combinations import TooManyRuns, check_size, count
    from waystage.simulate.loading import load
    from waystage.simulate.runner import run

    _only(path, "a sweep", options, {"--policy": options.policies, "--sets": options.sets})
    loaded = load(path)
    if options.seed is not None:
        loaded = dataclasses.replace(
            loaded, sweep=msgspec.structs.replace(loaded.sweep, seeds=(options.seed,))
        )
    sweep = loaded.sweep
    try:
        check_size(loaded, options.agreed)
    except TooManyRuns as error:
        if not sys.stdin.isatty() or output.json or output.quiet:
            raise UserError(str(error), ExitCode.USAGE) from None
        click.confirm(f"{sweep.name} is {count(loaded):,} runs. Make them all?", abort=True, err=True)

    def make(folder: Path, progress: Progress) -> None:
        if options.nodes is None:
            run(loaded, folder, progress, processes=options.processes)
            return
        with joined(options.nodes, output) as engine:
            nodes = (engine, options.nodes.directory)
            run(loaded, folder, progress, processes=options.processes, nodes=nodes)

    return Planned(
        sweep.name,
        make,
        loaded.warnings,
        # Beside the file, as with PFSim.
        None if sweep.output is None else path.parent / sweep.output,
        KEPT,
    )


def _contention(path: Path, options: Options, output: Output) -> Planned:
    """Raises ExperimentError."""
    import msgspec

    from waystage.experiment import results
    from waystage.experiment.loading import load_contention
    from waystage.simulate.contention import simulate

    foreign: dict[str, object] = {"--policy": options.policies, "--sets": options.sets}
    foreign |= {"--processes": options.processes, "--yes": options.agreed}
    foreign |= {"--scheduler and --slurm": options.nodes}
    _only(path, "a contention study", options, foreign)
    study = load_contention(path)
    if options.seed is not None:
        study = msgspec.structs.replace(study, seeds=(options.seed,))

    def run(folder: Path, progress: Progress) -> None:
        result = simulate(study, progress)
        folder.mkdir(parents=True, exist_ok=True)
        results.write(folder, result)

    return Planned(study.name, run)


def _only(path: Path, what: str, options: Options, foreign: Mapping[str, object]) -> None:
    """Raises UserError for another world than the simulator, and for options of comparisons of policies."""
    foreign = {**foreign, "--view": options.view_at}
    if options.world != "sim":
        raise UserError(f"{path.name} is {what}, which the simulator runs: use --on sim", ExitCode.USAGE)
    for name, value in foreign.items():
        if value:
            raise UserError(f"{name}: {path.name} is {what}, which has none", ExitCode.USAGE)


def _adjust(experiment: Experiment, options: Options) -> Experiment:
    """The experiment with the overrides of the command line. Raises ExperimentError."""
    import msgspec

    from waystage.experiment.checks import build_policy
    from waystage.experiment.problems import ExperimentError
    from waystage.experiment.schema import PolicyChoice
    from waystage.policies.base import PolicyError

    by_name = {choice.shown: choice for choice in experiment.policies}
    if options.policies:
        chosen = tuple(by_name.get(n, PolicyChoice(name=n)) for n in dict.fromkeys(options.policies))
        for choice in chosen:
            try:
                build_policy(choice, experiment, 0)
            except PolicyError as error:
                raise ExperimentError(f"--policy: {error}") from None
        experiment = msgspec.structs.replace(experiment, policies=chosen)
    if options.sets is not None:
        experiment = msgspec.structs.replace(experiment, sets=options.sets)
    if options.seed is not None:
        experiment = msgspec.structs.replace(experiment, seed=options.seed)
    return experiment


def _world(name: str) -> World:
    if name == "cluster":
        from waystage.worlds.cluster.runner import ClusterWorld

        return ClusterWorld()
    if name == "sim":
        from waystage.worlds.sim.runner import SimWorld

        return SimWorld()
    from waystage.worlds.lab.runner import LabWorld

    return LabWorld()


def _check_folder(folder: Path, *, resumes: bool) -> None:
    """A sweep continues in a folder with its runs; a folder with anything else is left alone."""
    from waystage.simulate.store import RUNS_FOLDER

    if not (resumes and (folder / RUNS_FOLDER).is_dir()):
        check_folder(folder)


def _first_failure(folder: Path) -> str:
    """For --quiet, where no table has said it."""
    from waystage.experiment.results import SweepResult, read

    result = read(folder)
    assert isinstance(result, SweepResult)
    failed = result.failed
    return f"{len(failed)} of {result.planned} runs failed, the first because {failed[0].cause}"


def _exit_code(error: Exception) -> ExitCode:
    from waystage.worlds.base import Unfit
    from waystage.worlds.lab.errors import LabBusy, MissingProgram, NotRoot

    codes = {
        NotRoot: ExitCode.NEEDS_ROOT,
        MissingProgram: ExitCode.MISSING,
        LabBusy: ExitCode.BUSY,
        Unfit: ExitCode.BAD_INPUT,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.FAILED)
