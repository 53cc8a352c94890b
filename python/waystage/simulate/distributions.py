"""Random times: from one arrival to the next, and how long a job takes.

Arrives: the name and parameters of a distribution, and a seeded generator.
Leaves: seconds, one at a time.
Must not know: what the times are used for.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from waystage.experiment.problems import Problem
from waystage.simulate.scenario import Distribution

Sampler = Callable[[random.Random], float]

_ALIASES = {"pfsim.math.ExponentialDistribution": "exponential"}

_PARAMS: dict[str, tuple[frozenset[str], ...]] = {
    "exponential": (frozenset({"lambd"}), frozenset({"mean"})),
    "fixed": (frozenset({"value"}),),
    "uniform": (frozenset({"low", "high"}),),
    "lognormal": (frozenset({"median", "sigma"}),),
}
"""Name -> the sets of parameters it takes. `lambd` is events a second, as in PFSim; times are in seconds."""


def sampler(distribution: Distribution) -> Sampler:
    """What draws from `distribution`. Raises Problem with the key below the distribution's own."""
    name = _ALIASES.get(distribution.distribution, distribution.distribution)
    if name not in _PARAMS:
        near = difflib.get_close_matches(name, list(_PARAMS), n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_PARAMS)}"
        raise Problem(("distribution",), f"unknown distribution {name!r}: {hint}")
    given = {key: _number(key, value) for key, value in distribution.params.items()}
    if frozenset(given) not in _PARAMS[name]:
        wanted = " or ".join(" and ".join(sorted(keys)) for keys in _PARAMS[name])
        raise Problem(("params",), f"distribution {name} takes {wanted}, not {_listed(given)}")
    return _build(name, given)


def _build(name: str, given: Mapping[str, float]) -> Sampler:
    if name == "exponential":
        rate = given["lambd"] if "lambd" in given else _inverse("mean", given["mean"])
        if rate <= 0:
            raise Problem(("params", "lambd"), f"{rate:g} is no rate: give jobs a second, above zero")
        return lambda rng: rng.expovariate(rate)
    if name == "fixed":
        value = given["value"]
        if value < 0:
            raise Problem(("params", "value"), f"{value:g} is no time: give seconds, zero or more")
        return lambda rng: value
    if name == "uniform":
        low, high = given["low"], given["high"]
        if not 0 <= low <= high:
            raise Problem(
                ("params", "low"), f"{low:g} to {high:g} is no range of times: give 0 <= low <= high"
            )
        return lambda rng: rng.uniform(low, high)
    median, sigma = given["median"], given["sigma"]
    if median <= 0 or sigma < 0:
        raise Problem(("params",), "lognormal needs a median above zero and a sigma of zero or more")
    return lambda rng: rng.lognormvariate(math.log(median), sigma)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Problem(("params", key), f"{value!r} is no number: give a finite one")
    return float(value)


def _inverse(key: str, value: float) -> float:
    if value <= 0:
        raise Problem(("params", key), f"{value:g} is no time between jobs: give seconds, above zero")
    return 1.0 / value


def _listed(given: Mapping[str, float]) -> str:
    return " and ".join(sorted(given)) or "nothing"
