"""Which share of the work is this process's, where several processes or nodes do it without talking to one another.

Arrives: the environment that Slurm or MPI gives its processes; or numbers that somebody gave.
Leaves: a rank and how many there are.
Must not know: what the work is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Who starts processes, innermost first: `mpirun` within a Slurm allocation sees the variables of both."""


class RankError(ValueError):
    """A rank that cannot be."""


@dataclass(frozen=True)
class Rank:
    """This process's number, from 0, and how many there are."""

    number: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise RankError(f"rank {self.number} of {self.of}: ranks are counted from 0 to {self.of - 1}")

    def has(self, part: int) -> bool:
        """Whether a part of the work, by its number, is this process's."""
        return part % self.of == self.number


def find_rank(
    number: int | None = None, of: int | None = None, environment: Mapping[str, str] | None = None
) -> Rank:
    """The rank that was given, else that of the launcher, else the only one. Raises RankError."""
    if number is not None and of is not None:
        return Rank(number, of)
    if number is not None or of is not None:
        raise RankError("give both --rank and --ranks, or neither, so that the launcher's are taken")
    environment = os.environ if environment is None else environment
    for rank, size in LAUNCHERS:
        if rank in environment and size in environment:
            try:
                return Rank(int(environment[rank]), int(environment[size]))
            except ValueError as error:
                raise RankError(
                    f"{rank}={environment[rank]} and {size}={environment[size]} are no rank ({error}):"
                    " give --rank and --ranks"
                ) from None
    return Rank()
