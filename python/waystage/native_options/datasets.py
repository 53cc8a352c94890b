"""Options of the native module's datasets.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DedupProfileOptions:
    """Options of `DedupProfile`."""

    method: str
    """`fast`, `fsc` or `fixed:BYTES`."""
    threads: int
    bytes_per_s: int = 0
    """0 for no limit."""
    part: Path | None = None
    """Write fingerprints to this file, and report nothing."""
    parts: int = 1
    number: int = 0
    """Which of the parts this is."""
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class AugmentationOptions:
    """Options of `Augmentation`."""

    operations: Sequence[str]
    seed: int
    encoding: str = "same"
    """`same` as the source, `png` or `jpeg`."""
    quality: int = 90
    """Of JPEG, 1 to 100."""
    max_pixels: int
    """Larger images are counted as broken."""
    first_copy: int = 0
    copies: int = 1
    threads: int
    bytes_per_s: int = 0
    """0 for no limit."""
    target: str
    """`tree` or `shard` with a `path`; `files` or `pixels`, which `next` returns."""
    path: Path | None = None
    overwrite: bool = False
