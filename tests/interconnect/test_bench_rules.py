"""The rules benchmark counts what the planner makes."""

from __future__ import annotations

from types import ModuleType

import pytest

from harness import bench_module
from waystage.bench import BenchOptions
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.topology import Topology


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    return bench_module("rules")


@pytest.mark.parametrize(
    "topology", [paper(), leaf_spine(4, 5, 4, storage_hosts=2), fat_tree(4)], ids=lambda t: t.name
)
def test_entries_counted_are_the_entries_planned(rules: ModuleType, topology: Topology) -> None:
    jobs = 2
    counted = rules.per_pair_switch_over(topology, jobs)
    held, messages = rules.planned_per_pair(topology, rules.loaded_state(topology, jobs))
    fixed = min(count for switch, count in held.items())
    assert counted["rules_off"] == max(held.values()) > fixed
    base = rules.count_base_entries(topology, seed=0)
    names = [host.name for host in topology.hosts]
    assert base.total() >= len(names) * (len(names) - 1)
    assert counted["messages"] == messages


def test_the_planner_alone_answers_every_beginning_and_end_of_staging() -> None:
    found = bench_module("_plan_times").plan_times(jobs=2, count=2)
    assert (found["hosts"], found["jobs"], found["plans"]) == (1024, 2, 4)
    assert 0 < found["median_ms"] <= found["p99_ms"]


def test_the_figures_meet_their_bars(rules: ModuleType) -> None:
    answer = rules.run(BenchOptions(quick=True))
    figures = answer["figures"]
    assert figures["labelled_growth_per_job"] == 0
    assert figures["per_pair_1024"] >= 100 * figures["labelled_1024"]
    for row in answer["details"].values():
        assert row["labelled"]["groups_touched"] == row["labelled"]["messages"] > 0
