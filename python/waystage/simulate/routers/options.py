"""Options that several routers take, checked where the scenario is read.

Arrives: values from a file.
Leaves: the same, of the right type; or a ValueError that names the option and what it takes.
Must not know: routers.
"""

from __future__ import annotations

import math
from typing import Any

MOST_EFFORT = 100
"""A hundred times its own measure: what takes longer was mistyped."""


def effort(value: object) -> float:
    """How long a search goes on; 1 is its own measure."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"effort: {value!r} is no number: give one from 0 to {MOST_EFFORT}")
    if not 0 <= value <= MOST_EFFORT:
        raise ValueError(f"effort: {value} is not from 0 to {MOST_EFFORT}")
    return float(value)


def yes_or_no(name: str, value: object) -> bool:
    """A switch."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} is neither true nor false")
    return value


def compared_candidates(candidates: object, by_capacity: object) -> dict[str, Any]:
    """What both forms of UGAL take: how many paths of each kind are compared, and whether by what links can carry."""
    return {
        "candidates": whole("candidates", candidates, 1, 64),
        "by_capacity": yes_or_no("by_capacity", by_capacity),
    }


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: {value!r} is not a whole number from {low} to {high}")
    return value
