"""Rank and size of a job whose processes share work without communication.

Arrives: the environment of Slurm or MPI, or explicit numbers.
Leaves: a rank and the number of ranks.
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
"""Launchers, innermost first: `mpirun` in a Slurm allocation has the variables of both."""


class RankError(ValueError):
    """An invalid rank."""


@dataclass(frozen=True)
class Rank:
    """The rank of this process, from 0, and the number of ranks."""

    number: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise RankError(f"rank {self.number} of {self.of}: ranks are counted from 0 to {self.of - 1}")

    def has(self, part: int) -> bool:
        """Whether the part of this number belongs to this process."""
        return part % self.of == self.number


def find_rank(
    number: int | None = None, of: int | None = None, environment: Mapping[str, str] | None = None
) -> Rank:
    """The rank given, else the launcher's, else the only one. Raises RankError."""
    if number is not None and of is not None:
        return Rank(number, of)
    if number is not None or of is not None:
        raise RankError("give both --rank and --ranks, or neither to use the launcher's")
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
