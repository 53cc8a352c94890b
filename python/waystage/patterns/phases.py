"""Phases by change of pattern, found in phases of fixed length.

Arrives: a pattern with many phases of equal length.
Leaves: one whose phases begin where the pattern changes.
Must not know: what the phases are used for.

Two neighbouring phases belong together where the shares of their bytes by pair are alike. A phase without traffic
belongs to the one before it, since a rank that computes has not changed its pattern.
"""

from __future__ import annotations

import numpy as np

from waystage.patterns.pattern import Pattern

ALIKE = 0.9
"""Cosine of two phases' bytes by pair above which they are one: 1 is the same pattern, 0 no pair in common."""


def by_change(pattern: Pattern, alike: float = ALIKE) -> Pattern:
    """Join neighbouring phases whose patterns are alike, each compared with the whole of those joined before it."""
    chosen = pattern.counted()
    pair = chosen.src.astype(np.int64) * pattern.ranks + chosen.dst
    bounds = [0]
    sums: dict[int, float] = {}
    at = np.searchsorted(chosen.phase, np.arange(pattern.phases + 1))
    for phase in range(pattern.phases):
        now: dict[int, float] = {}
        for key, total in zip(
            pair[at[phase] : at[phase + 1]].tolist(),
            chosen.bytes[at[phase] : at[phase + 1]].tolist(),
            strict=True,
        ):
            now[key] = now.get(key, 0.0) + float(total)
        if not any(now.values()):
            continue
        if sums and _cosine(sums, now) < alike:
            bounds.append(phase)
            sums = {}
        for key, total in now.items():
            sums[key] = sums.get(key, 0.0) + total
    return pattern.merged_phases(bounds)


def _cosine(one: dict[int, float], other: dict[int, float]) -> float:
    dot = sum(value * one.get(key, 0.0) for key, value in other.items())
    norms = np.sqrt(sum(v * v for v in one.values()) * sum(v * v for v in other.values()))
    return float(dot / norms) if norms else 1.0
