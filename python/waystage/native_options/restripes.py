"""Options of the native module's restriping.

Arrives: values that a caller has checked.
Leaves: frozen option objects with defaults.
Must not know: how the data plane carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StripePart:
    """How a range of a file is striped."""

    end: int | None = None
    """The byte after its last; None in the last part."""
    stripes: int | None = 1
    """Storage targets; None for all."""
    stripe_size: int = 1 << 20
    """Bytes of a stripe, a multiple of 64 KiB."""
    pool: str | None = None
    """The pool of the targets; None for any."""


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """Files up to a size, and how they are striped."""

    most_bytes: int | None = None
    """The largest size in it; None for any."""
    parts: Sequence[StripePart]


@dataclass(frozen=True, kw_only=True)
class RestripeOptions:
    """Options of `TreeRestripe`."""

    classes: Sequence[SizeClass]
    """By rising size. Larger files than those of the last class stay as they are."""
    workers: int
    """Threads, at least 1."""
    exclude: Sequence[bytes] = ()
    """Patterns over names, or over paths below the tree where they contain a slash."""
    one_file_system: bool = False
    verify: str = "none"
    """Whether a new file is read back before it takes the name: `none`, `cached` (from memory) or `storage`."""
    sync: bool = True
    """Force data to storage before a new file takes the name."""
    rate_bytes_per_s: int | None = None
    dry_run: bool = False
