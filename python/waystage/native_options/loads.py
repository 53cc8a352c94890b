"""Options of the native module's loads.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """Options of `Loading`."""

    whole_files: bool
    """Deliver files rather than objects as they arrive."""
    seed: int
    epoch: int
    shuffle: bool
    rank: int
    world: int
    """Number of ranks."""
    uneven: str
    """What happens to units that do not divide among the ranks: `keep`, `drop` or `repeat`."""
    loaders: int
    """Threads on each target."""
    best_loaders: int | None
    """Readers that a target serves best; more wait."""
    in_order: bool
    memory_bytes: int
    piece_bytes: int
    steal: bool
    """Whether idle loaders read from other targets."""
    raises: bool
    """Raise FileNotLoaded in place of a file that cannot be delivered, rather than count it."""
    resized: bool
    """Deliver files whose size differs from the catalog's."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Options of `measure_target`."""

    target: int
    skip: int
    """Pieces of the target that are skipped first."""
    pieces: int
    readers: int
    piece_bytes: int
    most_bytes: int


@dataclass(frozen=True, kw_only=True)
class SimulatedLoadOptions:
    """Options of `simulate_load`."""

    whole_files: bool
    loaders: int
    most_readers: int | None
    in_order: bool
    steal: bool
    memory_bytes: int
    piece_bytes: int
    seed: int = 0
    shuffle: bool = True
