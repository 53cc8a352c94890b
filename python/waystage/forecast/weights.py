"""Weights of wide-area modes in max-min shares.

Arrives: a mode's name. Leaves: its weight. Must not know: congestion control.

A `modest` flow takes what others leave: beside one of weight 1 it gets a thousandth. An `aggressive` flow takes nearly
all of a path.
"""

from __future__ import annotations

WEIGHTS = {"fair": 1.0, "fast-start": 1.0, "modest": 1e-3, "aggressive": 1e3}


def weight_of(mode: str | None) -> float:
    """1 for an unknown mode, as for every flow that has none."""
    return WEIGHTS.get(mode or "fair", 1.0)
