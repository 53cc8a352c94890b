"""Whether what was measured on an emulated file system measured the emulated servers.

Arrives: statistics of a mount.
Leaves: a sentence that says why not, or nothing.
Must not know: what was measured.
"""

from __future__ import annotations

from typing import Any

LATE_LIMIT_PCT = 5.0
"""Answers may be this much later, all together, than the emulated servers' waits were long. Past that, times say more of
this machine than of the shape. The share falls with `dilation`: waits grow with it, and lateness does not."""


def late_pct(statistics: dict[str, Any]) -> float:
    """How much later answers were than they should have been, in percent of what they should have taken."""
    waits = float(statistics["waits_s"])
    return 100.0 * float(statistics["late_s"]) / waits if waits > 0 else 0.0


def why_invalid(statistics: dict[str, Any]) -> str | None:
    """None where the times can be used."""
    late = late_pct(statistics)
    if late <= LATE_LIMIT_PCT:
        return None
    dilation = float(statistics["dilation"])
    return (
        f"answers came {late:.1f} % late, more than {LATE_LIMIT_PCT:g} %: this machine was too slow; "
        f"give a --dilation above {dilation:g}, or leave the machine alone"
    )
