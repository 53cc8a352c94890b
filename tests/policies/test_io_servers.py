"""Policies of server maps: what leaves, what stays, what comes back, and that measured noise changes nothing."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from io_support import IoSite, maps
from waystage.events import (
    AggregatorLost,
    AggregatorReport,
    AggregatorStarted,
    FileSystemDeclared,
    IoApplicationStarted,
    IoUse,
)
from waystage.policies.base import PolicyError, load_policy

EVEN = {f"a{n}": 10.0 for n in range(64)}


def test_a_slow_aggregator_leaves_after_one_operation_where_it_is_one_of_many() -> None:
    site = IoSite("elastic-io")
    site.application("a")
    assert site.write("a", EVEN) == []
    said = site.write("a", EVEN | {"a3": 40.0})
    assert [set(found) for found in maps(said)] == [{f"a{n}" for n in range(8)} - {"a3"}]
    assert "a3 slow" in site.state.reason
    for _ in range(5):
        assert site.write("a", EVEN) == []


def test_several_leave_at_once() -> None:
    site = IoSite("elastic-io")
    site.application("a", servers=16)
    said = site.write("a", EVEN | {"a3": 40.0, "a9": 60.0, "a11": 45.0})
    assert site.map_of("a") == {f"a{n}" for n in range(16)} - {"a3", "a9", "a11"}
    assert len(maps(said)) <= 3, "one answer for each report at most"


def test_of_two_aggregators_a_slow_one_leaves_only_if_it_stays_slow() -> None:
    site = IoSite("elastic-io")
    site.application("a", servers=2)
    site.write("a", EVEN)
    assert site.write("a", EVEN | {"a1": 80.0}) == [], (
        "it could be a burst, and half of the speed would be lost"
    )
    assert site.write("a", EVEN) == []
    site.write("a", EVEN | {"a1": 80.0})
    assert maps(site.write("a", EVEN | {"a1": 80.0})) == [("a0",)]


def test_nothing_leaves_where_all_are_slow() -> None:
    site = IoSite("elastic-io")
    site.application("a")
    site.write("a", EVEN)
    for factor in (4.0, 20.0, 5.0, 1.0):
        assert site.write("a", {name: factor * service for name, service in EVEN.items()}) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_bursts_move_no_aggregator_for_long(seed: int) -> None:
    draw = random.Random(seed)
    site = IoSite("elastic-io")
    site.application("a", servers=16)
    removed = 0
    for _ in range(200):
        services = {name: 10.0 * draw.lognormvariate(0.0, 0.15) for name in EVEN}
        if draw.random() < 0.03:
            services[f"a{draw.randrange(16)}"] = 45.0
        site.write("a", services)
        removed += 16 - len(site.map_of("a"))
    assert removed / 200 < 1.5, "a burst costs a sixteenth of the speed until the next trial"


def test_what_left_comes_back_once_it_is_fast_and_trials_become_rare_while_it_is_not() -> None:
    site = IoSite("elastic-io")
    site.application("a")
    site.write("a", EVEN)
    trials = []
    for op in range(400):
        site.write("a", EVEN | {"a3": 40.0})
        if "a3" in site.map_of("a"):
            trials.append(op)
    assert 2 <= len(trials) <= 7, "each as late again as the one before"
    assert all(b - a > 15 for a, b in itertools.pairwise(trials))
    for _ in range(800):
        site.write("a", EVEN)
    assert site.map_of("a") == {f"a{n}" for n in range(8)}
    assert site.state.io.applications["a"].wanted.aggregators == ()


def test_a_new_aggregator_is_used_at_once() -> None:
    site = IoSite("elastic-io")
    site.application("a")
    site.write("a", EVEN | {"a3": 40.0})
    said = site.see(AggregatorStarted(app="a", agent="n", aggregator="a99", host="a1"))
    assert "a99" in maps(said)[0] and "a3" not in site.map_of("a")


@pytest.mark.parametrize("name", ["failed-aggregator", "elastic-io"])
def test_an_aggregator_that_dies_again_and_again_stays_out_longer_each_time(name: str) -> None:
    site = IoSite(name)
    site.application("a")
    alive = AggregatorReport(agent="n", processes=(IoUse(app="a", host="a1"),))
    out_s = []
    for _ in range(3):
        site.see(AggregatorLost(app="a", agent="n", aggregator="a3", reason="killed"))
        assert "a3" not in site.map_of("a")
        site.see(AggregatorStarted(app="a", agent="n", aggregator="a3", host="a1"))
        since = site.now
        while "a3" not in site.map_of("a"):
            site.see(alive, 1.0)
            if name == "elastic-io":
                site.write("a", EVEN)
            assert site.now - since < 200e9
        out_s.append(round((site.now - since) / 1e9))
    assert out_s[0] >= 10 and out_s[1] >= 1.5 * out_s[0] and out_s[2] >= 1.5 * out_s[1]


def test_with_one_aggregator_left_it_is_used_at_once() -> None:
    site = IoSite("failed-aggregator")
    site.application("a", servers=1)
    site.see(AggregatorLost(app="a", agent="n", aggregator="a0"))
    site.see(AggregatorStarted(app="a", agent="n", aggregator="a0", host="a1"))
    assert site.map_of("a") == {"a0"}


def test_the_number_of_aggregators_follows_the_curve_of_the_targets() -> None:
    def chosen(slowdown: tuple[tuple[float, float], ...], rule: str = "paths") -> int:
        site = IoSite("aggregators-by-paths", rule=rule)
        fs = FileSystemDeclared(file_system="fs", targets=4, target_bps=10**6, slowdown=slowdown)
        site.see(fs)
        for host in ("c1", "c2", "c3", "c4", "c5", "c6"):
            site.see(IoApplicationStarted(app="a", agent="n", host=host, ranks=8))
            site.see(AggregatorStarted(app="a", agent="n", aggregator=host, host=host))
        site.request("a")
        site.complete("a", 1.0)
        return len(site.map_of("a"))

    assert chosen(((1.0, 1.0), (6.0, 1.0))) == 6, "no contention: all of them"
    assert chosen(((1.0, 1.0), (2.0, 1.0), (3.0, 4.0), (6.0, 9.0))) == 2
    assert chosen(((1.0, 1.0), (2.0, 1.0), (3.0, 4.0)), rule="romio") == 6
    assert chosen(((1.0, 1.0), (2.0, 1.0), (3.0, 4.0)), rule="clarisse") == 3, "48 ranks by 16"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("elastic-io", {"gain": 1.0}),
        ("elastic-io", {"mistake": 1.0}),
        ("elastic-io", {"again": 0}),
        ("failed-aggregator", {"stable_s": -1}),
        ("aggregators-by-paths", {"rule": "best"}),
        ("aggregators-by-paths", {"gain": 0.5}),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=r"give|use"):
        load_policy(name, **options)


services = st.floats(0.1, 1e6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(services, min_size=4, max_size=4), min_size=1, max_size=12))
def test_whatever_is_measured_some_aggregator_serves_and_no_answer_repeats_the_map_in_use(
    rounds: list[list[float]],
) -> None:
    site = IoSite("elastic-io")
    site.application("a", servers=4)
    for found in rounds:
        before = site.map_of("a")
        said = site.write("a", {f"a{n}": service for n, service in enumerate(found)})
        assert site.map_of("a")
        assert maps(said) or site.map_of("a") == before
