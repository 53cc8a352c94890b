"""How long a copy is expected to take: `waystage copy --dry-run`, from the user's own copies before.

Arrives: a finished copy, or a dry run with what it would copy.
Leaves: a measurement in the user's file; the expected time as text and as JSON.
Must not know: how a copy works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec


class Copying(Protocol):
    """A copy that has ended."""

    @property
    def complete(self) -> bool: ...

    def progress(self) -> dict[str, int]: ...


def about_time(
    copying: Copying,
    ends: tuple[str, str, bool],
    seconds: float,
    dry_run: str | None,
    value: dict[str, Any],
    *,
    limited: bool,
) -> str:
    """Keep a copy's measurement if nothing limited it; of a dry run, add the expected time to `value`, and say it.

    `ends`: source, destination, and whether both are compared afterwards.
    """
    from waystage.staging.measured import Sample, measured, samples_of
    from waystage.staging.mounts import between
    from waystage.staging.rates import estimate

    counts = copying.progress()
    source, destination, verified = ends
    size, files = counts["bytes"], counts["files"]
    if dry_run not in (None, "plan") or not size:
        return ""
    pair = between(source, destination) + (", verified" if verified else "")
    if dry_run is None:
        if copying.complete and not limited and not counts["resumed"]:
            measured(pair, Sample(size, files, seconds))
        return ""
    found = estimate(samples_of(pair), size, files)
    expected = None if found is None else msgspec.to_builtins(found)
    value |= {"between": pair, "expected": expected}
    words = "unknown: no copy was measured yet" if expected is None else in_words(expected, "copies")
    return f"\nexpected time: {words}, {pair}"


def in_words(found: Mapping[str, Any], what: str) -> str:
    """An estimate, as a dry run shows it: `12.0 s; 10.1 to 14.0 s by 9 measured copies`."""
    beyond = found.get("times_larger", 1)
    far = f", the largest {beyond:.0f} times smaller" if beyond >= 2 else ""
    return (
        f"{_seconds(found['seconds'])} s; {_seconds(found['least'])} to {_seconds(found['greatest'])} s by "
        f"{found['count']} measured {what}{far}"
    )


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
