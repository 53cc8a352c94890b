"""The forecast of a state: times known by hand, no effect on the state, curves."""

from __future__ import annotations

import pytest

from policy_support import Site, stage_in
from waystage.events import JobStarted, Pause, SetLoaders, SetRate, StagingStarted
from waystage.forecast.curves import best_loaders, total_at
from waystage.forecast.model import Forecast
from waystage.policies.base import load_policy


def staging(*jobs: str, size: int = 10**8) -> Site:
    """Each job reads from one target of 1 MB/s by one loader: x loaders get x / g(x), 1.5 for two."""
    site = Site("null")
    for job in jobs:
        site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",)), after_s=0.0)
        site.see(stage_in(f"f{job}", job, size, loaders=1), after_s=0.0)
    return site


def test_flows_end_when_their_target_has_served_them() -> None:
    site = staging("1", "2")
    future = Forecast(site.state, horizon_s=1000, steps=100).run()
    both = 2 * 100 / total_at(((1.0, 1.0), (4.0, 2.0)), 2)
    assert future.ends_s == pytest.approx({"f1": both, "f2": both}) and future.complete
    # Alone, a job would have its target at its best, 2 MB/s with four loaders.
    assert future.slowdown["1"] == pytest.approx(both / 50)


def test_of_flows_that_end_together_none_is_lost_to_a_policy_that_answers_the_first() -> None:
    site = staging("1", "2", "3")
    future = Forecast(site.state, horizon_s=1000, steps=100).run(load_policy("storage-shares"))
    assert len(set(future.ends_s.values())) == 1 and max(future.ends_s.values()) < 1000


def test_actions_first_count_and_the_state_stays_as_it_is() -> None:
    site = staging("1", "2")
    before = site.state.snapshot()
    first = [
        Pause(flow_id="f2"),
        SetLoaders(flow_id="f1", loaders=4),
        SetRate(flow_id="f1", rate_bps=8 * 10**6),
    ]
    future = Forecast(site.state, horizon_s=1000, steps=100).run(None, first)
    assert future.ends_s["f1"] == pytest.approx(100.0, rel=1e-3)
    assert future.ends_s["f2"] > 1000
    assert site.state.snapshot() == before


def test_a_forecast_is_bounded_by_steps_and_repeats_to_the_bit() -> None:
    site = staging("1", "2", "3")
    site.see(JobStarted(job_id="4", nodes=("c2", "c3", "c4")))
    runs = [Forecast(site.state, horizon_s=600, steps=5).run() for _ in range(2)]
    assert runs[0] == runs[1] and not runs[0].complete and runs[0].steps <= 7


def test_the_best_number_of_loaders_is_where_x_over_g_is_largest() -> None:
    curve = ((1.0, 1.0), (8.0, 3.19), (64.0, 21.0), (128.0, 85.0))
    best = best_loaders(curve)
    assert 60 <= best <= 64
    assert all(total_at(curve, x) <= total_at(curve, best) * 1.0011 for x in range(1, 300))
    assert best_loaders(()) == 1 and best_loaders(((1.0, 1.0), (2.0, 4.0))) == 1
