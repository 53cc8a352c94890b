"""Options of the native module's routes.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RouteOptions:
    """Options of `Network.route_loads`."""

    seed: int = 0
    initial: NDArray[np.float64] | None = None
    """Loads that greedy and joint routing avoid, bytes for each link."""
    per_flow: bool = False
    """Give each entry a path, rather than each pair of hosts."""
    by_capacity: bool = False
    """Compare loads relative to the capacity of their links."""
    keep_paths: bool = False
    effort: float = 1.0
    candidates: int = 2
    """Paths that valiant and UGAL draw for each pair."""
