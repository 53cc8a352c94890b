"""`waystage run`: run an experiment and compare its policies.

Arrives: an experiment file and the world to run it in.
Leaves: a directory of results, its report, and the comparison as a table.
Must not know: how any world works.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.folders import check_folder, default_folder, writing

if TYPE_CHECKING:
    from waystage.experiment.schema import Experiment
    from waystage.worlds.base import World

WORLDS = ("lab", "sim", "cluster")


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
    "--processes", type=click.IntRange(min=1), help="Concurrent runs of a scenario [default: one per core]."
)
@click.option("--yes", "agreed", is_flag=True, help="Do not ask before more than 100,000 runs of a scenario.")
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
    output: Output,
) -> None:
    """Run EXPERIMENT and compare its policies, set by set.

    A scenario of the simulator (--on sim) runs every combination of its algorithms. With --out of an interrupted
    scenario, only the missing runs are made.

    Prints the comparison and the path of the report. The lab needs root. Exit status: 1 if a job or the lab
    failed, 3 if EXPERIMENT is invalid, 6 if another run uses the lab, 7 if the result is invalid, 130 after
    Ctrl-C; finished job sets are kept.
    """
    from waystage.experiment.kinds import kind_of
    from waystage.experiment.loading import load
    from waystage.experiment.problems import ExperimentError
    from waystage.topology import slow_links
    from waystage.worlds.base import WorldError

    kind = kind_of(experiment)
    if kind == "contention":
        from waystage.cli.run_contention import run_contention

        only_others = {"--policy": policies, "--sets": sets, "--processes": processes, "--yes": agreed}
        run_contention(experiment, world, out, seed, only_others, output)
        return
    if kind == "scenario":
        from waystage.cli.run_scenario import run_scenario

        _only_for_experiments(experiment, world, {"--policy": policies, "--sets": sets})
        run_scenario(experiment, out, seed, processes, agreed, output)
        return
    try:
        loaded, topology = load(experiment)
        chosen = _adjust(loaded, policies, sets, seed)
    except ExperimentError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    slow = slow_links(link.capacity_bps for link in topology.links)
    if slow:
        output.note(f"warning: topology {topology.name}: {slow}")
    place = _world(world)
    folder = out or default_folder(chosen.name)
    check_folder(folder)
    try:
        with output.progress() as progress, writing(folder):
            place.run(chosen, folder, progress)
    except KeyboardInterrupt:
        with writing(folder):
            _show(folder, output)
        raise
    except WorldError as error:
        with writing(folder):
            _show(folder, output)
        raise UserError(str(error), _exit_code(error)) from None
    with writing(folder):
        invalid, failed = _show(folder, output)
    if failed:  # before anything is said of its figures
        click.get_current_context().exit(ExitCode.FAILED)
    if invalid:
        click.get_current_context().exit(ExitCode.INVALID)


def _only_for_experiments(path: Path, world: str, options: dict[str, object]) -> None:
    if world != "sim":
        raise UserError(f"{path.name} is a scenario of the simulator: run it with --on sim", ExitCode.USAGE)
    for name, value in options.items():
        if value:
            raise UserError(
                f"{name}: {path.name} is a scenario and has algorithms instead of policies", ExitCode.USAGE
            )


def _adjust(experiment: Experiment, names: tuple[str, ...], sets: int | None, seed: int | None) -> Experiment:
    """The experiment with the overrides of the command line. Raises ExperimentError."""
    import msgspec

    from waystage.experiment.checks import build_policy
    from waystage.experiment.problems import ExperimentError
    from waystage.experiment.schema import PolicyChoice
    from waystage.policies.base import PolicyError

    by_name = {choice.shown: choice for choice in experiment.policies}
    if names:
        chosen = tuple(by_name.get(n, PolicyChoice(name=n)) for n in dict.fromkeys(names))
        for choice in chosen:
            try:
                build_policy(choice, experiment, 0)
            except PolicyError as error:
                raise ExperimentError(f"--policy: {error}") from None
        experiment = msgspec.structs.replace(experiment, policies=chosen)
    if sets is not None:
        experiment = msgspec.structs.replace(experiment, sets=sets)
    if seed is not None:
        experiment = msgspec.structs.replace(experiment, seed=seed)
    return experiment


def _world(name: str) -> World:
    if name == "cluster":
        raise UserError(
            "--on cluster is not implemented yet; the same file runs with --on lab and --on sim",
            ExitCode.USAGE,
        )
    if name == "sim":
        from waystage.worlds.sim.runner import SimWorld

        return SimWorld()
    from waystage.worlds.lab.runner import LabWorld

    return LabWorld()


def _show(folder: Path, output: Output) -> tuple[bool, bool]:
    """Write the report of `folder` and print its table; returns whether the run is invalid, and whether jobs failed."""
    from waystage.cli.report import describe
    from waystage.experiment.results import RESULT_FILE, load

    if not (folder / RESULT_FILE).exists():
        return False, False
    result = load(folder)
    if not result.jobs:
        return bool(result.invalid), False
    value, text = describe(folder)
    ended_well = not result.interrupted and not result.failure
    if ended_well or not output.json:  # with --json the answer to a failed run is the error alone
        output.result(value, text)
    return bool(result.invalid), any(job.status == "failed" for job in result.jobs)


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
