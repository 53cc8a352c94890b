"""The pattern file: docs/reference/pattern-file.md describes every byte.

Arrives: nothing.
Leaves: its numbers and structures, for the reader and the writer beside it.
Must not know: other formats.

A header and sections, little-endian: one section for each rank, which the rank itself encoded, so that the
profiler gathers a run's file, and `merge` joins the parts of an aborted one, by copying sections.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from waystage.patterns import varints
from waystage.patterns.kinds import Kind

MAGIC = b"\x89WSP\r\n\x1a\n"
"""As PNG's: a transfer in text mode damages it, and then it is not taken for a pattern."""

MAJOR, MINOR = 1, 0
HEADER = struct.Struct("<8sHHIQQII")
"""Magic, major and minor version, ranks, start in Unix ns, phase interval in ns, reserved, CRC-32 of all before."""

SECTION = struct.Struct("<4sIQ")
"""Tag, CRC-32 of the tag and the content, length of the content."""

MOST_RANKS = 1 << 22
MOST_PHASES = 1 << 20
"""A damaged number must not make a reader take all memory."""

FINISHED, RECEIVES = 1, 2
"""Flags of a rank: it reached MPI_Finalize; what it received was counted too."""

PULLED, PROTOCOL = 1, 2
"""Flags of a kind."""

COLUMNS = 6


@dataclass(frozen=True)
class RankPart:
    """One rank's section. `rows` has columns phase, peer, kind, size class, messages, bytes."""

    rank: int
    node: str
    flags: int
    doublings: int
    duration_ns: int
    warnings: tuple[str, ...]
    sent: tuple[varints.U64, ...]
    received: tuple[varints.U64, ...]


@dataclass(frozen=True)
class PatternFile:
    """A file's content before it is put together; `sections` are those of ranks, still encoded, by rank."""

    ranks: int
    start_ns: int
    interval_ns: int
    run: Mapping[str, str]
    kinds: tuple[Kind, ...]
    edges_ns: tuple[int, ...]
    warnings: tuple[str, ...]
    sections: Mapping[int, bytes]


def missing_message(name: str, ranks: int, there: Iterable[int]) -> str:
    """The sentence about ranks that left nothing."""
    present = set(there)
    absent = [r for r in range(ranks) if r not in present]
    listed = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
    return (
        f"{name} lacks {len(absent)} of {ranks} ranks ({listed}): "
        "merge it with the parts that they left, or profile the program again"
    )
