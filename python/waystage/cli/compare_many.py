"""`waystage compare` of more than two runs of one experiment: the mean times side by side.

Arrives: the folders of the runs, the measurement last.
Leaves: mean times by policy, each run's error against the last one, the order of policies in each; text or JSON.
Must not know: which worlds ran them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.cli.common import ExitCode, Output, UserError, table

if TYPE_CHECKING:
    from waystage.experiment.compare import RunComparison
    from waystage.experiment.results import RunResult


def compare_many(folders: Sequence[Path], output: Output) -> None:
    """Raises UserError where they are no runs of one comparison of policies."""
    from waystage.experiment import results
    from waystage.experiment.compare import CompareError, compare

    try:
        runs = [results.read(folder) for folder in folders]
        of_policies = [run for run in runs if isinstance(run, results.RunResult)]
        if len(of_policies) < len(runs):
            raise CompareError("more than two runs are compared by policy: give comparisons of policies")
        samples = [results.load_timelines(folder) for folder in folders]
        found = [
            compare(run, of_policies[-1], sample, samples[-1])
            for run, sample in zip(of_policies[:-1], samples[:-1], strict=True)
        ]
    except (results.ResultError, CompareError) as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    names = _names(folders, of_policies)
    output.result(_value(names, folders, found), _text(names, found))


def _names(folders: Sequence[Path], runs: Sequence[RunResult]) -> list[str]:
    """The worlds, or where they are not all different, the folders."""
    worlds = [run.world for run in runs]
    return worlds if len(set(worlds)) == len(worlds) else [str(folder) for folder in folders]


def _means(names: Sequence[str], found: Sequence[RunComparison]) -> list[dict[str, Any]]:
    """A row for each policy and quantity that all comparisons have.

    A run's mean is over the sets that it has in common with the last one; so is the error beside it.
    """
    of_each = [{(mean.policy, mean.quantity): mean for mean in each.means} for each in found]
    rows = []
    for key, last in of_each[-1].items():
        if not all(key in means for means in of_each):
            continue
        row: dict[str, Any] = {"policy": key[0], "quantity": key[1]}
        for name, means in zip(names, of_each, strict=False):
            row[name] = round(means[key].predicted_s, 6)
        row[names[-1]] = round(last.measured_s, 6)
        for name, means in zip(names, of_each, strict=False):
            error = means[key].error_pct
            row[f"{name}_error_pct"] = None if error == float("inf") else round(error, 3)
        rows.append(row)
    return rows


def _value(names: Sequence[str], folders: Sequence[Path], found: Sequence[RunComparison]) -> dict[str, Any]:
    orders = [each.order_predicted for each in found] + [found[-1].order_measured]
    return {
        "runs": [{"name": name, "folder": str(folder)} for name, folder in zip(names, folders, strict=True)],
        "means": _means(names, found),
        "orders": dict(zip(names, orders, strict=True)),
        "same_order": all(each.same_order for each in found),
        "max_link_error_pct": {
            name: each.max_link_error_pct for name, each in zip(names, found, strict=False)
        },
        "max_mean_job_error_pct": {
            name: each.max_mean_error_pct for name, each in zip(names, found, strict=False)
        },
        "notes": {name: each.notes for name, each in zip(names, found, strict=False)},
    }


def _text(names: Sequence[str], found: Sequence[RunComparison]) -> str:
    rows = _means(names, found)
    parts = [
        f"note: {name} against {names[-1]}: {note}"
        for name, each in zip(names, found, strict=False)
        for note in each.notes
    ]
    parts += [
        f"Mean times by policy, s; errors against {names[-1]}",
        table(rows, list(rows[0]) if rows else []),
        "",
    ]
    orders = [each.order_predicted for each in found] + [found[-1].order_measured]
    for name, order in zip(names, orders, strict=True):
        parts.append(f"order of policies by mean job time, {name}: {' < '.join(order)}")
    for name, each in zip(names, found, strict=False):
        parts.append(
            f"largest errors of {name}: links {each.max_link_error_pct:.1f} %, mean job times "
            f"{each.max_mean_error_pct:.1f} %"
        )
    return "\n".join(parts)
