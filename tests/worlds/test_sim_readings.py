"""How often a simulation reads the counters of links: as often as anything reads them, with the same results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sim_support import experiment
from waystage.events import Action, Envelope, Event, LinkUse
from waystage.experiment import results
from waystage.experiment.schema import Experiment
from waystage.policies.base import reads_rates
from waystage.policies.combined import Combined
from waystage.policies.deadline_staging import DeadlineStaging
from waystage.policies.ecmp import Ecmp
from waystage.policies.link_separation import LinkSeparation
from waystage.state import State
from waystage.worlds import bins
from waystage.worlds.sim.network import Network
from waystage.worlds.sim.runner import SimWorld


class Reading(LinkSeparation):
    """Link separation that may read rates: its own class does not say that it does not."""


class Untrue:
    """Says that it reads no rates, and counts the events that tell of them."""

    name = "untrue"
    reads_rates = False
    told = 0

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        Untrue.told += isinstance(event, LinkUse)
        return ()


def jobs(folder: Path, policy: str) -> Experiment:
    """An hour and more of jobs of several sizes."""
    text = f"""
name: hour
topology: paper
policies: [{{name: "{policy}", label: policy}}]
sets: 2
jobs:
  count: 30
  nodes: 1
  arrivals: {{distribution: exponential, mean_s: 130}}
  compute: {{program: ring, iterations: 3, message: 30 MB, time_s: 10}}
  mixes:
    - {{name: one, stage_in: {{bytes: 60 MB}}}}
    - {{name: four, nodes: 4, stage_out: {{bytes: 20 MB, to: each}}}}
"""
    return experiment(folder, text)


def played(folder: Path, made: Experiment, watcher: object = None) -> dict[str, bytes]:
    """The files of the results."""
    world = SimWorld()
    world.watcher = watcher  # type: ignore[assignment]
    world.run(made, folder, lambda what, share: None)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != results.EXPERIMENT_FILE}


class Watching:
    def begin(self, policy: str, set_index: int) -> None: ...

    def __call__(self, item: Envelope) -> None:
        self.use = getattr(self, "use", 0) + isinstance(item.event, LinkUse)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often counters were read since the last call."""
    count = [0]
    counts = Network.counts

    def counted(network: Network) -> object:
        count[0] += 1
        return counts(network)

    monkeypatch.setattr(Network, "counts", counted)

    def since() -> int:
        found, count[0] = count[0], 0
        return found

    return since


def test_results_do_not_depend_on_who_reads_link_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: Callable[[], int]
) -> None:
    monkeypatch.setattr(bins, "MOST_BINS", 60)  # an hour has then bins of more than a minute
    rarely = played(tmp_path / "rarely", jobs(tmp_path, "link-separation"))
    few = readings()
    often = played(tmp_path / "often", jobs(tmp_path, f"{__name__}:Reading"))
    many = readings()
    watcher = Watching()
    watched = played(tmp_path / "watched", jobs(tmp_path, "link-separation"), watcher)
    assert many > 5 * few and watcher.use > 3600
    assert rarely == watched
    for name in ("events.jsonl", "timelines.parquet"):
        assert rarely[name] == often[name], name


def test_a_policy_that_reads_no_rates_gets_no_link_use(tmp_path: Path) -> None:
    played(tmp_path / "out", jobs(tmp_path, f"{__name__}:Untrue"))
    assert Untrue.told == 0


def test_only_a_class_that_says_so_itself_reads_no_rates() -> None:
    assert not reads_rates(Ecmp()) and reads_rates(Reading()) and reads_rates(lambda event, state: ())
    assert not reads_rates(DeadlineStaging())
    assert not reads_rates(Combined(["link-separation", "deadline-staging"]))
    assert reads_rates(Combined(["demand-separation", "deadline-staging"]))


def test_jobs_of_a_mix_have_its_number_of_nodes(tmp_path: Path) -> None:
    result = SimWorld().run(jobs(tmp_path, "ecmp"), tmp_path / "out", lambda what, share: None)
    assert {(job.kind, len(job.nodes)) for job in result.jobs} == {("one", 1), ("four", 4)}
