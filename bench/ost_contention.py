"""Storage contention of SwiftLoad's Fig. 7: does imbalance rise with loaders, and what object level gains at 64:1.

Runs experiments/ost-contention.yaml. `ci_rises` is 1 where the contention imbalance rises from each ratio of loaders to
targets to the next, as in Fig. 7a. `ol_fl_ratio_64` is the time at object level over that at file level with 64 loaders
a target: below 1, object level is faster.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import BenchOptions
from waystage.experiment import results
from waystage.experiment.loading import load_contention
from waystage.experiment.report import write_report
from waystage.simulate.contention import simulate

STUDY = Path(__file__).parents[1] / "experiments" / "ost-contention.yaml"
TAKES_S = 20, 5


def run(options: BenchOptions) -> dict[str, Any]:
    """The study; quick: one seed and a tenth of the files."""
    study = load_contention(STUDY)
    if options.quick:
        model = msgspec.structs.replace(study.contention, files=study.contention.files // 10)
        study = msgspec.structs.replace(study, contention=model, seeds=study.seeds[:1])
    result = simulate(study, options.progress)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        results.write(options.out, result)
        write_report(options.out, result)
    points = result.points
    imbalance = [p.imbalance for p in points]
    rises = all(a < b for a, b in pairwise(imbalance))
    at_64 = next(p for p in points if p.ratio == 64)
    return {
        "figures": {"ci_rises": int(rises), "ol_fl_ratio_64": at_64.object_level / at_64.file_level},
        "details": {
            "files": study.contention.files,
            "seeds": list(study.seeds),
            "best_loaders": result.best_loaders,
            "points": [msgspec.structs.asdict(p) for p in points],
        },
    }
