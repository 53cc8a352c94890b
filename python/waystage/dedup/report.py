"""The report of a deduplication profile, also from parts, and estimates.

Arrives: what the data plane counted; parts.
Leaves: a report, with computed shares.
Must not know: how reports are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from waystage._native import DEDUP_SLICES, dedup_estimate, dedup_merge
from waystage.display import named
from waystage.task import Progress

SAMPLE = 445_570
"""Chunks of a sample, as in FS-C: the estimate is then within 1 % of the data where two thirds are redundant."""


@dataclass(frozen=True)
class Amount:
    """Chunks and bytes, and how much of them is distinct."""

    chunks: int = 0
    bytes: int = 0
    distinct_chunks: int = 0
    distinct_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.chunks + other.chunks,
            self.bytes + other.bytes,
            self.distinct_chunks + other.distinct_chunks,
            self.distinct_bytes + other.distinct_bytes,
        )

    @property
    def redundant_share(self) -> float:
        """The share of redundant bytes: FS-C's deduplication ratio."""
        return 1 - self.distinct_bytes / self.bytes if self.bytes else 0.0

    @property
    def duplicate_chunk_share(self) -> float:
        """The share of redundant chunks: SwiftLoad's deduplication ratio."""
        return 1 - self.distinct_chunks / self.chunks if self.chunks else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "chunks": self.chunks,
            "bytes": self.bytes,
            "distinct_chunks": self.distinct_chunks,
            "distinct_bytes": self.distinct_bytes,
            "redundant_share": round(self.redundant_share, 6),
            "duplicate_chunk_share": round(self.duplicate_chunk_share, 6),
        }


@dataclass(frozen=True)
class Report:
    """The distinct data: of all, within each type, and within each bin of file sizes (by its lower bound)."""

    method: str
    files: dict[str, int]
    all: Amount
    types: dict[str, Amount]
    sizes: dict[int, Amount]
    zero_chunks: int
    zero_bytes: int
    repeated_files: int
    repeated_bytes: int
    index_bytes: int
    has_hole_chunk: bool
    excluded: int = 0
    errors: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def with_holes(self) -> Amount:
        """The counts if holes are read as zeros, as FS-C does."""
        chunks, hole_bytes = self.files["hole_chunks"], self.files["hole_bytes"]
        new = 1 if chunks and not self.has_hole_chunk else 0
        return Amount(
            self.all.chunks + chunks,
            self.all.bytes + hole_bytes,
            self.all.distinct_chunks + new,
            self.all.distinct_bytes + new * (hole_bytes // chunks if chunks else 0),
        )

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`, described in docs/how-to/dedup.md."""
        return {
            "method": self.method,
            "files": self.files | {"excluded": self.excluded},
            "all": self.all.as_json(),
            "with_holes": self.with_holes.as_json(),
            "by_type": {name: amount.as_json() for name, amount in sorted(self.types.items())},
            "by_size": {str(floor): amount.as_json() for floor, amount in sorted(self.sizes.items())},
            "zero_chunks": self.zero_chunks,
            "zero_bytes": self.zero_bytes,
            "repeated_files": self.repeated_files,
            "repeated_bytes": self.repeated_bytes,
            "index_bytes": self.index_bytes,
            "errors": [named(path) | {"error": text} for path, text in self.errors],
        }


def from_native(
    counted: dict[str, Any], errors: list[tuple[bytes, str]], question: dict[str, Any], excluded: int = 0
) -> Report:
    """The report of what the data plane counted."""
    return Report(
        method=question["method"],
        files=counted["files"],
        all=Amount(**counted["all"]),
        types={name: Amount(**amount) for name, amount in counted["types"].items()},
        sizes={floor: Amount(**amount) for floor, amount in counted["sizes"].items()},
        zero_chunks=counted["zero_chunks"],
        zero_bytes=counted["zero_bytes"],
        repeated_files=counted["repeated_files"],
        repeated_bytes=counted["repeated_bytes"],
        index_bytes=counted["index_bytes"],
        has_hole_chunk=counted["has_hole_chunk"],
        excluded=excluded,
        errors=errors,
    )


def merge(parts: Sequence[Path], progress: Progress, slices: tuple[int, int] = (0, DEDUP_SLICES)) -> Report:
    """Join parts exactly, or slices of them, from the first to before the second. Raises DedupPartError where one is damaged
    or missing, or they are of different profiles."""
    question, counted = dedup_merge(list(parts), _told(progress, "joined"), slices)
    return from_native(counted, [], question)


def together(reports: Sequence[Report]) -> Report:
    """The report of all slices, from those of different slices: their chunks differ, so that counts add up."""
    types: dict[str, Amount] = {}
    sizes: dict[int, Amount] = {}
    for report in reports:
        for name, amount in report.types.items():
            types[name] = types.get(name, Amount()) + amount
        for floor, amount in report.sizes.items():
            sizes[floor] = sizes.get(floor, Amount()) + amount
    first = reports[0]
    return replace(
        first,
        files={name: sum(report.files[name] for report in reports) for name in first.files},
        all=sum((report.all for report in reports), Amount()),
        types=types,
        sizes=sizes,
        zero_chunks=sum(report.zero_chunks for report in reports),
        zero_bytes=sum(report.zero_bytes for report in reports),
        repeated_files=sum(report.repeated_files for report in reports),
        repeated_bytes=sum(report.repeated_bytes for report in reports),
        index_bytes=max(report.index_bytes for report in reports),
        has_hole_chunk=any(report.has_hole_chunk for report in reports),
    )


def estimate(
    parts: Sequence[Path], progress: Progress, sample: int = SAMPLE, seed: int = 0
) -> dict[str, Any]:
    """Estimate the distinct data from parts, in constant memory: see docs/how-to/dedup.md."""
    question, found = dedup_estimate(list(parts), sample, seed, _told(progress, "looked at"))
    return {
        "method": question["method"],
        "files": found["files"],
        "chunks": found["chunks"],
        "bytes": found["bytes"],
        "sample": found["sample"],
        "redundant_share": round(1 - found["distinct_share"], 6),
        "error": round(found["error"], 6),
        "confidence": found["confidence"],
    }


def _told(progress: Progress, what: str) -> Callable[[int], None]:
    return lambda chunks: progress(f"{chunks:,} chunks {what}", 0.0)
