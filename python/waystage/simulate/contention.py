"""Storage contention: what crowding of loaders on storage targets costs, as in SwiftLoad's Fig. 7.

Arrives: a study (targets, files, a layout, a slowdown curve, ratios of loaders to targets).
Leaves: for each ratio the contention imbalance, the straggler ratio and the times of four ways of scheduling.
Must not know: worlds, policies, networks; a study has none.

docs/reference/contention.md describes the file, the model and the results. The compiled module works through the
events. The same study gives the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from waystage import __version__
from waystage._native import ContentionModel
from waystage.experiment.results import ContentionResult, Point, Row
from waystage.experiment.schema import Contention, ContentionStudy
from waystage.task import Progress


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
        name=study.name,
        waystage=__version__,
        study=study,
        objects=tuple(objects),
        best_loaders=best,
        points=points,
        rows=tuple(rows),
    )


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
