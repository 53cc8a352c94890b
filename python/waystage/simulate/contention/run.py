"""Run a study: every ratio of every seed, and the folder of results.

Arrives: the path of a study file, a folder, a progress call.
Leaves: `result.json`, `report.html`, `plots/*.svg`; and the result.
Must not know: how anything is drawn.

The same study gives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage import __version__
from waystage._native import ContentionModel
from waystage.simulate.contention.study import Contention, ContentionStudy, load

RESULT_FILE = "result.json"

Progress = Callable[[str, float], None]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One ratio with one seed. Times are in units of one object read by one loader alone."""

    ratio: int
    seed: int
    imbalance: float
    straggler_ratio: float
    file_level: float
    ideal_object_level: float
    object_level: float
    chosen: float
    chosen_loaders: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the seeds of one ratio."""

    ratio: int
    imbalance: float
    straggler_ratio: float
    file_level: float
    ideal_object_level: float
    object_level: float
    chosen: float


class ContentionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What result.json holds."""

    schema: int = 1
    kind: str = "contention"
    waystage: str
    study: ContentionStudy
    objects: tuple[int, ...]
    best_loaders: int
    points: tuple[Point, ...]
    rows: tuple[Row, ...]


def run_contention(path: Path, out: Path, progress: Progress) -> ContentionResult:
    """Run the study in `path` and write its results to `out`. Raises ExperimentError where the file is wrong."""
    study = load(path)
    result = simulate(study, progress)
    save(result, out)
    return result


def simulate(study: ContentionStudy, progress: Progress) -> ContentionResult:
    """All ratios with all seeds. Each seed places other files; Ctrl-C interrupts within a moment."""
    model = study.contention
    rows: list[Row] = []
    objects: list[int] = []
    best = 1
    whole = len(study.seeds) * len(model.ratios)
    for seed in study.seeds:
        native = _place(model, seed)
        on_targets = native.objects()
        objects.append(int(on_targets.sum()))
        best = native.best_loaders(model.ratios[-1])
        for ratio in model.ratios:
            progress(f"{ratio}:1, seed {seed}", len(rows) / whole)
            rows.append(_row(native, on_targets, model, ratio, seed, best))
    progress("done", 1.0)
    points = tuple(_mean([row for row in rows if row.ratio == ratio]) for ratio in model.ratios)
    return ContentionResult(
        waystage=__version__,
        study=study,
        objects=tuple(objects),
        best_loaders=best,
        points=points,
        rows=tuple(rows),
    )


def save(result: ContentionResult, out: Path) -> None:
    """Write the folder; each file appears whole or not at all."""
    from waystage.simulate.contention.report import write_report

    out.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(result, order="deterministic"), indent=1)
    part = out / f"{RESULT_FILE}.part"
    part.write_bytes(data + b"\n")
    os.replace(part, out / RESULT_FILE)
    write_report(result, out)


def draw_sizes(model: Contention, seed: int) -> NDArray[np.uint64]:
    """Lognormal sizes of at least one byte."""
    uniform = np.random.Generator(np.random.PCG64(seed)).random((2, model.files))
    # Box and Muller's method: the stream of `random` stays the same between versions of numpy, `normal` may not.
    normal = np.sqrt(-2.0 * np.log1p(-uniform[0])) * np.cos(2.0 * np.pi * uniform[1])
    sizes = model.sizes.median * np.exp(model.sizes.sigma * normal)
    whole: NDArray[np.uint64] = np.clip(np.rint(sizes), 1, model.sizes.largest).astype(np.uint64)
    return whole


def _place(model: Contention, seed: int) -> ContentionModel:
    components = [
        (part.to, model.targets if part.stripes == "all" else min(part.stripes, model.targets))
        for part in model.layout
    ]
    return ContentionModel(
        draw_sizes(model, seed),
        targets=model.targets,
        stripe_size=model.stripe_size,
        components=components,
        slowdown=list(model.slowdown),
        most_loaders=model.ratios[-1] * model.targets,
        first_target=seed % model.targets,
    )


def _row(
    native: ContentionModel,
    on_targets: NDArray[np.uint64],
    model: Contention,
    ratio: int,
    seed: int,
    best: int,
) -> Row:
    ended, imbalance = native.file_level(ratio * model.targets, from_queue=model.dealing == "queue")
    even = np.full(1, -(-int(on_targets.sum()) // model.targets), dtype=np.uint64)
    loaders = min(ratio, best)
    return Row(
        ratio=ratio,
        seed=seed,
        imbalance=imbalance,
        straggler_ratio=float(ended.max() / ended.min()),
        file_level=float(ended.max()),
        ideal_object_level=float(native.object_level(even, ratio).max()),
        object_level=float(native.object_level(on_targets, ratio).max()),
        chosen=float(native.object_level(on_targets, loaders).max()),
        chosen_loaders=loaders,
    )


def _mean(rows: list[Row]) -> Point:
    def mean(name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    return Point(
        ratio=rows[0].ratio,
        imbalance=mean("imbalance"),
        straggler_ratio=mean("straggler_ratio"),
        file_level=mean("file_level"),
        ideal_object_level=mean("ideal_object_level"),
        object_level=mean("object_level"),
        chosen=mean("chosen"),
    )
