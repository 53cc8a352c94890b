"""A process finds its share of the work in what its launcher says."""

from __future__ import annotations

import pytest

from waystage.ranks import Rank, RankError, find_rank


def test_numbers_that_were_given_count_most() -> None:
    assert find_rank(1, 3, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Rank(1, 3)
    assert find_rank(None, None, {}) == Rank(0, 1)


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ],
)
def test_launchers_are_known(rank: str, size: str) -> None:
    assert find_rank(environment={rank: "2", size: "4"}) == Rank(2, 4)


def test_mpirun_within_slurm_is_the_launcher() -> None:
    both = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
    }
    assert find_rank(environment=both) == Rank(3, 4)


def test_what_is_no_rank_is_refused() -> None:
    for number, of in [(3, 3), (-1, 2), (0, 0), (1, None)]:
        with pytest.raises(RankError):
            find_rank(number, of, {})
    with pytest.raises(RankError, match="SLURM_PROCID=x"):
        find_rank(environment={"SLURM_PROCID": "x", "SLURM_NTASKS": "2"})


def test_every_part_is_one_ranks() -> None:
    for part in range(20):
        assert sum(Rank(rank, 3).has(part) for rank in range(3)) == 1
