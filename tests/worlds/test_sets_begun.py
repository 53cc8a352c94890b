"""A run whose sets are limited has each begun set under every policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sim_support import experiment, star
from waystage.bench import Limit
from waystage.experiment.schema import PolicyChoice
from waystage.experiment.workload import JobRequest
from waystage.worlds.base import PolicyRun


class Counting(PolicyRun):
    """Runs nothing, and counts."""

    def __init__(self, folder: Path) -> None:
        text = f"""
name: counted
topology: {star(folder)}
policies: [ecmp, link-separation]
sets: 3
jobs:
  count: 1
  nodes: 1
  compute: {{program: none, iterations: 1}}
  stage_in: {{bytes: 1 MB}}
"""
        super().__init__(
            "none", experiment(folder, text), folder / "out", lambda what, share: None, start_ns=0
        )
        self.begun_sets: list[tuple[str, int]] = []

    def run_set(self, choice: PolicyChoice, number: int, jobs: Sequence[JobRequest]) -> bool:
        self.begun_sets.append((choice.shown, number))
        return True


def test_a_time_limit_leaves_whole_sets(tmp_path: Path) -> None:
    limited, whole = Counting(tmp_path), Counting(tmp_path)
    limited.begun = Limit(seconds=1e-9).steps
    limited.run_sets()
    whole.run_sets()
    assert sorted(limited.begun_sets) == [("ecmp", 0), ("link-separation", 0)]
    assert len(whole.begun_sets) == 6
