"""Random times: from one submission to the next, and how long a job holds its nodes.

Arrives: a `Distribution`, a seeded generator.
Leaves: seconds, one at a time.
Must not know: what the times are used for.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import msgspec

from waystage.experiment.problems import Problem
from waystage.experiment.schema import Distribution

Sampler = Callable[[random.Random], float]

_PARAMETERS: dict[str, tuple[frozenset[str], ...]] = {
    "together": (frozenset(),),
    "fixed": (frozenset({"mean_s"}),),
    "uniform": (frozenset({"low_s", "high_s"}),),
    "exponential": (frozenset({"mean_s"}), frozenset({"rate_per_s"})),
    "lognormal": (frozenset({"median_s", "sigma"}),),
    "listed": (frozenset({"each_s"}),),
}
"""Distribution -> the sets of parameters that it takes."""


def sampler(distribution: Distribution) -> Sampler:
    """A function that draws from `distribution`. Raises Problem with the key below the distribution's own."""
    kind = distribution.distribution
    values = msgspec.structs.asdict(distribution)
    given = {name: value for name, value in values.items() if name != "distribution" and value is not None}
    if frozenset(given) not in _PARAMETERS[kind]:
        wanted = " or ".join(" and ".join(sorted(keys)) or "no parameter" for keys in _PARAMETERS[kind])
        raise Problem(
            (), f"distribution {kind} takes {wanted}, not {' and '.join(sorted(given)) or 'nothing'}"
        )
    if kind == "exponential":
        rate = given["rate_per_s"] if "rate_per_s" in given else _inverse(given["mean_s"])
        return lambda rng: rng.expovariate(rate)
    if kind == "uniform":
        low, high = given["low_s"], given["high_s"]
        if low > high:
            raise Problem(("low_s",), f"{low:g} is above high_s, {high:g}: exchange them")
        return lambda rng: rng.uniform(low, high)
    if kind == "lognormal":
        mu, sigma = math.log(given["median_s"]), given["sigma"]
        return lambda rng: rng.lognormvariate(mu, sigma)
    if kind == "listed":
        if not given["each_s"]:
            raise Problem(("each_s",), "it is empty: list at least one time in seconds")
        in_turn = itertools.cycle(given["each_s"])
        return lambda rng: next(in_turn)
    constant = given.get("mean_s", 0.0)
    return lambda rng: constant


def _inverse(mean_s: float) -> float:
    if mean_s <= 0:
        raise Problem(("mean_s",), f"{mean_s:g} is no mean time: give seconds, above zero")
    return 1.0 / mean_s
