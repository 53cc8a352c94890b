"""The kinds of messages: who sent it, the program or one of the library's own operations.

Arrives: nothing.
Leaves: the table of kinds, by number, as the profiler writes it into every file.
Must not know: how a kind is recognised, which is the profiler's (shim/mpi/kinds.h holds the same table, and a
test compares the two).

A file carries its own table, so that a reader needs no kind to be in this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["p2p", "collective", "one-sided", "other"]


@dataclass(frozen=True)
class Kind:
    """`pulled`: the recording rank received the bytes. `protocol`: how other kinds' bytes were carried, so no total
    counts it."""

    number: int
    name: str
    group: str
    pulled: bool = False
    protocol: bool = False


_COLLECTIVES = (
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "alltoallw",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "gatherv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "scatter",
    "scatterv",
    "nonblocking",
    "neighbour",
    "setup",
    "collective",
)
"""`nonblocking`: one whose operation the message does not tell. `neighbour`: with the neighbours of a process topology.
`setup`: making communicators, windows and files. `collective`: one that the profiler has no name for."""

UNSPLIT = Kind(0, "unsplit", "other")
"""Traffic whose kind was not recorded, as in the original profiler's files."""

KINDS: tuple[Kind, ...] = (
    UNSPLIT,
    Kind(1, "p2p", "p2p"),
    Kind(2, "put", "one-sided"),
    Kind(3, "get", "one-sided", pulled=True),
    Kind(4, "accumulate", "one-sided"),
    Kind(5, "rma-protocol", "one-sided", protocol=True),
    Kind(6, "file-io", "other"),
    *(Kind(16 + i, name, "collective") for i, name in enumerate(_COLLECTIVES)),
)
"""What this version's profiler writes."""

SIZE_UNKNOWN = 255
"""The size class of messages whose sizes were not recorded by pair."""

SIZE_CLASSES = 64
"""Class 0 holds empty messages, class k those of 2^(k-1) to 2^k - 1 bytes, class 63 all larger ones too."""
