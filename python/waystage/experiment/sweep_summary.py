"""The table of a sweep's runs.

Arrives: a sweep's result.
Leaves: one row for each combination, over its seeds; only the columns in which runs differ.
Must not know: files, how a table is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from waystage.experiment.results import RunRecord, SweepResult
from waystage.experiment.units import format_bytes
from waystage.stats import spread

CHOICES = ("topology", "scheduler", "host_selector", "process_mapper", "router")


class Combined(msgspec.Struct, frozen=True, kw_only=True):
    """A combination. Means over its seeds; `low` and `high` bound the mean of the largest load with 95 %
    confidence (Student's t), or with `is_range`, for fewer than five seeds, they are the least and the most.
    `relative` is to the first combination of the same topology, `gap` by what share the largest load is above
    `bound_bytes`, which no routing can beat."""

    choices: dict[str, str]
    runs: tuple[int, ...]
    failed: int = 0
    cause: str = ""
    max_load_bytes: float = 0.0
    low: float | None = None
    high: float | None = None
    is_range: bool = False
    bound_bytes: float = 0.0
    gap: float | None = None
    relative: float | None = None
    max_congestion_s: float = 0.0
    imbalance: float = 0.0
    mean_wait_s: float = 0.0
    mean_job_s: float = 0.0
    finished: float = 0.0
    submitted: float = 0.0
    node_use: float = 0.0

    @property
    def name(self) -> str:
        return " ".join(self.choices.values())


def summarise(result: SweepResult) -> list[Combined]:
    """Rows in the order of the file."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for run in result.runs:
        groups.setdefault(tuple(getattr(run, choice) for choice in CHOICES), []).append(run)
    rows: list[Combined] = []
    first: dict[str, float] = {}
    for names, runs in groups.items():
        row = _row(dict(zip(CHOICES, names, strict=True)), runs)
        base = first.setdefault(names[0], row.max_load_bytes)
        rows.append(msgspec.structs.replace(row, relative=row.max_load_bytes / base if base else None))
    return rows


def columns(rows: Sequence[Combined]) -> list[str]:
    """Names of the choices in which rows differ; the router where none do."""
    differing = [c for c in CHOICES if len({row.choices[c] for row in rows}) > 1]
    return differing or ["router"]


def table_rows(rows: Sequence[Combined], mode: str, shown: Sequence[str]) -> list[dict[str, Any]]:
    """For people: the choices in `shown`, and the same keys in every row."""
    several = any(len(row.runs) > 1 for row in rows)
    table = []
    for row in rows:
        line: dict[str, Any] = {choice.replace("_", " "): row.choices[choice] for choice in shown}
        if row.failed == len(row.runs):
            line |= {"max load": "failed"}
        else:
            line |= {"max load": format_bytes(row.max_load_bytes, 4)}
            if several:
                line["spread"] = _spread(row)
            line["bound"] = format_bytes(row.bound_bytes, 4) if row.bound_bytes else ""
            line["gap"] = "" if row.gap is None else f"{row.gap:.1%}"
            line["relative"] = "" if row.relative is None else f"{row.relative:.4f}"
            line["imbalance"] = f"{row.imbalance:.3f}"
            line["wait s"] = f"{row.mean_wait_s:.4g}"
            if mode == "time":
                line["job s"] = f"{row.mean_job_s:.4g}"
            line["jobs done"] = f"{row.finished:.4g} of {row.submitted:.4g}"
            line["nodes used"] = f"{row.node_use:.0%}"
        if several:
            line["seeds"] = str(len(row.runs)) + (f", {row.failed} failed" if row.failed else "")
        table.append(line)
    keys = list(dict.fromkeys(key for line in table for key in line))
    return [{key: line.get(key, "") for key in keys} for line in table]


def _row(choices: dict[str, str], runs: Sequence[RunRecord]) -> Combined:
    done = [run.metrics for run in runs if run.status == "done"]
    failed = [run for run in runs if run.status == "failed"]
    row = Combined(
        choices=choices,
        runs=tuple(run.number for run in runs),
        failed=len(failed),
        cause=failed[0].cause if failed else "",
    )
    if not done:
        return row
    loads = [metrics.max_load_bytes for metrics in done]
    bounds = spread(loads)
    gaps = [metrics.gap for metrics in done if metrics.gap is not None]
    return msgspec.structs.replace(
        row,
        max_load_bytes=_mean(loads),
        low=None if bounds is None else bounds.low,
        high=None if bounds is None else bounds.high,
        is_range=bounds is not None and bounds.is_range,
        bound_bytes=_mean([m.bound_bytes for m in done]),
        gap=_mean(gaps) if gaps else None,
        max_congestion_s=_mean([m.max_congestion_s for m in done]),
        imbalance=_mean([m.imbalance for m in done]),
        mean_wait_s=_mean([m.mean_wait_s for m in done]),
        mean_job_s=_mean([m.mean_job_s for m in done]),
        finished=_mean([float(m.finished) for m in done]),
        submitted=_mean([float(m.submitted) for m in done]),
        node_use=_mean([m.node_use for m in done]),
    )


def _spread(row: Combined) -> str:
    if row.low is None or row.high is None:
        return ""
    kind = "range" if row.is_range else "95 %"
    return f"{kind}: {format_bytes(max(0.0, row.low), 4)} to {format_bytes(row.high, 4)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
