"""`d-mod-k`: the destination's index modulo the number of core switches chooses the core switch.

Arrives: events and the state. Leaves: one path plan, as `ecmp` does. Must not know: jobs, staging, rules.

Static routing for fat trees: all traffic to one host descends over one core switch, and consecutive
destinations use different ones, so shift patterns meet no collision.
"""

from __future__ import annotations

from waystage.events import RuleStyle, Spread
from waystage.policies.ecmp import Ecmp


class DModK(Ecmp):
    """`style` is how rules are written."""

    name = "d-mod-k"
    reads_rates = False
    spread: Spread = "destination"

    def __init__(self, style: RuleStyle = "labelled") -> None:
        super().__init__(style=style, seed=0)
