"""`waystage bench`: run benchmarks.

Arrives: a benchmark's name.
Leaves: a table, or with --json one object.
Must not know: what a benchmark measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from waystage.cli.common import ExitCode, Output, UserError, output_options, table

if TYPE_CHECKING:
    from waystage.bench import BenchOptions


USUAL_LIMIT_S = 300.0
"""Of a run for which no number of turns and no limit was given: a benchmark answers within five minutes."""


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from waystage.bench import BenchError, benchmarks

    try:
        known = benchmarks()
    except BenchError:
        return []
    return [CompletionItem(n, help=h) for n, h in known.items() if n.startswith(incomplete)]


@click.command()
@click.argument("name", required=False, shell_complete=_complete)
@click.option("--quick", is_flag=True, help="Smoke run: fewer turns, wider intervals.")
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    help="Number of turns, instead of the benchmark's own.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="Begin no turn that would probably end later; print what was measured. 300 without --repetitions.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the files of the run.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Pattern file or PFSim archive, for benchmarks that take one.",
)
@click.option(
    "--topology",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="GraphML file, for benchmarks that take one.",
)
@output_options
def command(
    name: str | None,
    quick: bool,
    repetitions: int | None,
    time_limit: float | None,
    out: Path | None,
    trace: Path | None,
    topology: Path | None,
    output: Output,
) -> None:
    """Run benchmark NAME; without NAME, list the benchmarks.

    Prints the figures, the peers that they are compared with (measured in the same run), and the machine. With
    --json, prints one object {"name", "figures", "peers", "machine", "details"}. The exit status is 7 where the
    machine was short of CPU, or the result is not valid: the machine was measured instead of the method.

    A run without --repetitions ends within about five minutes; where its smallest turn takes longer, it says so at the
    start. Ctrl-C and --time-limit end the run; the figures are then those of the complete turns, "stopped" in the
    details says why, and "missing" names the cases that were not measured. The exit status is 130 and 75 where there
    are too few for any figure.
    """
    from waystage.bench import (
        BenchError,
        BenchOptions,
        Limit,
        NoBenchmark,
        Stopped,
        benchmarks,
        durations,
        least_durations,
        run_benchmark,
    )

    try:
        if name is None:
            known = benchmarks()
            rows = [
                {"benchmark": key, "takes": _takes(durations(key), quick), "what it measures": value}
                for key, value in known.items()
            ]
            output.result({"benchmarks": known}, table(rows, ["benchmark", "takes", "what it measures"]))
            return
        given = {"trace": trace, "topology": topology}
        inputs = {key: path for key, path in given.items() if path is not None}
        takes = _takes(durations(name), quick)
        if time_limit is None and repetitions is None:
            time_limit = USUAL_LIMIT_S
        if takes and repetitions is None:
            output.note(
                f"{name} takes about {takes} and begins no turn that would end after {time_limit:g} s;"
                " Ctrl-C ends it and prints what was measured"
            )
        least_s = (least_durations(name) or (0, 0))[1 if quick else 0]
        if time_limit is not None and least_s > time_limit:
            least = _takes(least_durations(name), quick)
            output.note(f"its smallest turn takes about {least}, longer than the limit of {time_limit:g} s")
        with output.progress() as progress:
            options = BenchOptions(quick, repetitions, out, progress, inputs, Limit(time_limit))
            result = run_benchmark(name, options)
    except Stopped as error:
        raise UserError(f"benchmark {name} {error}", _status(options)) from error
    except NoBenchmark as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from error
    except BenchError as error:
        raise UserError(str(error), ExitCode.FAILED) from error
    output.result(result, as_text(result))
    if not result["figures"] and options.limit.stopped:
        click.get_current_context().exit(_status(options))
    if result["machine"]["short_of_cpu"] or result["details"].get("valid") is False:
        click.get_current_context().exit(ExitCode.INVALID)


def _status(options: BenchOptions) -> ExitCode:
    """The exit status of a run that ended too early for any figure."""
    return ExitCode.INTERRUPTED if options.limit.interrupted else ExitCode.TIMED_OUT


def _takes(durations: tuple[int, int] | None, quick: bool) -> str:
    """How long a benchmark takes, as text; empty where it does not say."""
    if durations is None:
        return ""
    seconds = durations[1 if quick else 0]
    return f"{seconds} s" if seconds < 90 else f"{round(seconds / 60)} min"


def as_text(result: dict[str, Any]) -> str:
    """A result as a table for people."""
    machine = result["machine"]
    rows = [{"figure": k, "value": v} for k, v in result["figures"].items()]
    parts = [f"benchmark {result['name']}", "", table(rows, ["figure", "value"])]
    peers = [{"peer": k, "value": v} for k, v in result["peers"].items() if isinstance(v, int | float)]
    if peers:
        parts += ["", table(peers, ["peer", "value"])]
    details = [
        {"detail": k, "value": v} for k, v in result["details"].items() if not isinstance(v, dict | list)
    ]
    if details:
        parts += ["", table(details, ["detail", "value"])]
    for title, turns in {"": result["details"], **result["details"]}.items():
        if isinstance(turns, dict) and {"medians", "dropped"} <= turns.keys():
            parts += ["", *([title] if title else []), _medians(turns)]
            parts += [f"dropped: {line}" for line in turns["dropped"]]
    parts += [f"not measured: {case}" for case in result["details"].get("missing", [])]
    parts.append("")
    warning = "  SHORT OF CPU: the figures are limited by this machine" if machine["short_of_cpu"] else ""
    parts += [
        f"machine: {machine['cores']} cores, kernel {machine['kernel']}, "
        f"{machine['idle_pct']} % idle (lowest second {machine['lowest_idle_pct']} %), "
        f"{machine['steal_pct']} % stolen by the hypervisor{warning}",
    ]
    return "\n".join(parts)


def _medians(turns: dict[str, Any]) -> str:
    """The medians of a benchmark's contestants, with the bounds of their intervals."""
    rows = [
        {"contestant": name, "figure": figure, "turns": found["count"], **found}
        for name, figures in turns["medians"].items()
        for figure, found in figures.items()
        if figure not in ("idle_pct", "wrong_share")
    ]
    return table(rows, ["contestant", "figure", "median", "low", "high", "turns"])
