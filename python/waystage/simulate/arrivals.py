"""Which jobs arrive when, and how long each takes.

Arrives: a sweep and a seed.
Leaves: submissions in order of time.
Must not know: algorithms: with the same seed every combination gets the same jobs.
"""

from __future__ import annotations

import random

import msgspec

from waystage.experiment.distributions import sampler
from waystage.experiment.schema import Sweep

MOST_JOBS = 1_000_000
"""In one run. Above this a rate was mistaken for a mean."""


class TooManyJobs(ValueError):
    """A sweep whose jobs, above all those of `source`, arrive too fast for its duration."""

    def __init__(self, source: int, duration_s: float) -> None:
        super().__init__(
            f"more than {MOST_JOBS:,} jobs arrive within {duration_s:g} s: "
            "give a count, or a longer time from one to the next"
        )
        self.source = source


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job of source `source`. `duration_s` and `estimate_s` are infinite where the file gives none."""

    job: int
    source: int
    at_s: float
    duration_s: float
    estimate_s: float


def submissions(sweep: Sweep, seed: int) -> list[Submission]:
    """Every job that arrives before the end of the sweep. Raises TooManyJobs."""
    drawn: list[tuple[float, int, int, float]] = []
    for number, source in enumerate(sweep.jobs):
        rng = random.Random(f"waystage jobs {seed} {number}")
        between = sampler(source.submit)
        length = sampler(source.duration) if source.duration is not None else None
        at_s, count = 0.0, 0
        while source.count is None or count < source.count:
            at_s += between(rng)
            if at_s > sweep.duration:
                break
            drawn.append((at_s, number, count, float("inf") if length is None else length(rng)))
            count += 1
            if len(drawn) > MOST_JOBS:
                raise TooManyJobs(number, sweep.duration)
    drawn.sort(key=lambda job: job[:3])
    return [
        Submission(
            job=index,
            source=number,
            at_s=at_s,
            duration_s=length_s,
            estimate_s=length_s * sweep.jobs[number].estimate,
        )
        for index, (at_s, number, _, length_s) in enumerate(drawn)
    ]
