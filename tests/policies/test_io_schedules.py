"""Schedules of I/O: who waits, who goes on, that grants are leases, and that a schedule stands aside where it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from io_support import IoSite, granted
from waystage.events import GrantIo, IoApplicationFinished, IoApplicationStarted, IoRequested
from waystage.policies.base import PolicyError, load_policy
from waystage.policies.io_rules import INTERRUPTED

SCHEDULES = ["io-fcfs", "io-set10", "io-calciom", "io-min-dilation"]


def two(name: str, **options: Any) -> IoSite:
    """Two applications, scheduled from the first operation on."""
    site = IoSite(name, learn=False, **options)
    site.application("a")
    site.application("b")
    return site


def is_in(site: IoSite, app: str) -> bool:
    return site.state.io.applications[app].going_on


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_application_alone_needs_no_grant(name: str) -> None:
    site = IoSite(name)
    site.application("a")
    for _ in range(3):
        assert granted(site.request("a")) == {} and is_in(site, "a")
        site.complete("a", 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_first_that_meet_are_let_go_on_and_then_one_waits_for_the_other(name: str) -> None:
    site = IoSite(name)
    site.application("a")
    site.application("b")
    site.request("a")
    site.request("b", after_s=0.0)
    assert is_in(site, "a") and is_in(site, "b"), "it costs nothing, and shows what it costs"
    site.complete("a", 2.0)
    site.complete("b", 2.0, after_s=0.0)
    site.request("a", after_s=5.0)
    site.request("b", after_s=0.1)
    assert is_in(site, "a") and not is_in(site, "b")
    said = site.complete("a", 1.0, after_s=0.9)
    assert granted(said)["b"] == 1.0 and is_in(site, "b")


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_application_expected_next_has_its_grant_before_it_asks(name: str) -> None:
    site = two(name)
    for _ in range(3):
        for app, after_s in (("a", 4.0), ("b", 3.0)):
            site.request(app, after_s=after_s)
            assert is_in(site, app), "no other is in an operation"
            said = granted(site.complete(app, 1.0))
    assert said.get("a") == 1.0, "b has just written: a comes next"
    assert granted(site.request("a", after_s=4.0)) == {} and is_in(site, "a")


def test_an_operation_that_began_with_a_grant_taken_back_says_nothing_of_paces() -> None:
    site = two("io-fcfs")
    for app in "ab":
        site.request(app)
        site.complete(app, 1.0)
    holder = next(app for app in "ab" if site.state.io.applications[app].wanted.weight > 0)
    other = "b" if holder == "a" else "a"
    site.request(other)
    site.request(holder, after_s=0.0)  # its process let it go on before it knew
    known = site.state.io.applications[holder]
    before = known.alone.operations + known.shared.operations
    site.complete(holder, 2.0)
    assert known.alone.operations + known.shared.operations == before


def test_fcfs_grants_in_the_order_of_requests() -> None:
    site = two("io-fcfs", beside=0)
    site.application("c")
    for app in ("b", "a", "c"):
        site.request(app)
    order = []
    for _ in range(3):
        (app,) = [name for name in "abc" if is_in(site, name)]
        order.append(app)
        site.complete(app, 1.0)
    assert order == ["b", "a", "c"]


def test_fcfs_lets_a_short_operation_go_beside_a_long_one() -> None:
    site = two("io-fcfs")
    for app, took_s, size in (("a", 100.0, 100_000), ("b", 1.0, 1000)):
        site.request(app, size)
        site.complete(app, took_s, size)
    site.request("a", 100_000)
    site.request("b", 1000)
    assert is_in(site, "b"), "waiting would cost it 99 s, and sharing costs the other 1 s"


def test_a_grant_ends_with_the_application_that_held_it() -> None:
    site = two("io-fcfs")
    site.request("a")
    site.request("b")
    assert not is_in(site, "b")
    site.see(IoApplicationFinished(app="a", agent="n", host="a1", outcome="lost"))
    assert is_in(site, "b")


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_application_waits_for_an_operation_that_hangs_beyond_its_lease(name: str) -> None:
    site = two(name, lease_s=10)
    site.request("a")
    site.request("b")
    assert not is_in(site, "b")
    site.see(IoApplicationStarted(app="c", agent="n", host="c1"), after_s=11.0)
    assert is_in(site, "b")


@pytest.mark.parametrize("name", SCHEDULES)
def test_waiting_ends_without_a_controller(name: str) -> None:
    site = two(name, lease_s=10)
    site.request("a")
    site.request("b")
    app = site.state.io.applications["b"]
    assert 0 < app.wanted.until_ns - site.now <= 10e9


def test_where_sharing_gains_nothing_is_scheduled() -> None:
    site = IoSite("io-fcfs")
    site.application("a")
    site.application("b")
    site.request("a")
    site.request("b", after_s=0.0)
    site.complete("a", 1.0)
    site.complete("b", 1.0, after_s=0.0)  # together in 1 s
    site.request("a")
    site.complete("a", 1.0)  # and alone in 1 s: one cannot use all of the storage
    for _ in range(3):
        site.request("a")
        site.request("b", after_s=0.0)
        assert is_in(site, "a") and is_in(site, "b")
        site.complete("a", 1.0)
        site.complete("b", 1.0, after_s=0.0)


def test_short_operations_are_left_alone() -> None:
    site = two("io-fcfs")
    for app in "ab":
        site.request(app)
        site.complete(app, 0.01)
    site.request("a")
    site.request("b", after_s=0.0)
    assert is_in(site, "b")


def test_set10_gives_frequent_writers_more_and_those_of_one_set_take_turns() -> None:
    site = IoSite("io-set10", learn=False)
    for app in "abc":
        site.application(app)
    for turn in range(33):  # a and b write every 10 s, c every 110 s
        for app in "ab":
            site.request(app, after_s=5.0)
            site.complete(app, 0.2, after_s=0.0)
        if turn % 11 == 0:
            site.request("c", after_s=0.0)
            site.complete("c", 0.2, after_s=0.0)
    site.request("c")
    site.request("a")
    site.request("b")
    weights = {app: site.state.io.applications[app].wanted.weight for app in "abc"}
    assert is_in(site, "a") and is_in(site, "c") and not is_in(site, "b")
    assert weights["a"] == pytest.approx(10 * weights["c"])


def test_min_dilation_serves_the_one_that_was_slowed_down_most() -> None:
    site = two("io-min-dilation")
    site.application("c")
    for app in "abc":
        site.request(app)
        site.complete(app, 1.0)
    site.request("c")
    site.request("a", after_s=0.0)  # a waits 5 s for it
    site.complete("c", 1.0, after_s=5.0)
    site.complete("a", 1.0)
    site.request("c")
    site.request("b", after_s=0.1)
    site.request("a", after_s=0.1)
    said = site.complete("c", 1.0)
    assert is_in(site, "a") and not is_in(site, "b"), said


def test_calciom_interrupts_a_long_operation_for_a_short_one_of_many_ranks() -> None:
    site = IoSite("io-calciom", learn=False)
    site.application("a", ranks=4)
    site.application("b", ranks=400)
    for app, took_s, size in (("a", 100.0, 100_000), ("b", 1.0, 1000)):
        site.request(app, size)
        site.complete(app, took_s, size)
    site.request("a", 100_000)
    said = site.request("b", 1000)
    assert granted(said) == {"a": INTERRUPTED, "b": 1.0}
    said = site.complete("b", 1.0, 1000)
    assert granted(said)["a"] == 1.0, "it goes on"


def test_calciom_lets_a_long_operation_of_few_ranks_wait_for_one_that_is_nearly_done() -> None:
    site = IoSite("io-calciom", learn=False)
    site.application("a", ranks=100)
    site.application("b", ranks=4)
    for app in "ab":
        site.request(app, 10_000)
        site.complete(app, 10.0, 10_000)
    site.request("a", 10_000)
    site.request("b", 10_000, after_s=9.0)
    assert not is_in(site, "b")


def test_fair_shares_are_those_of_applications_and_none_waits() -> None:
    site = IoSite("io-fair", weights={"ada": 3.0})
    site.application("a")
    site.application("b")
    assert site.state.io.applications["a"].wanted.version == 1
    site.request("a")
    site.request("b")
    assert is_in(site, "a") and is_in(site, "b")


@pytest.mark.parametrize("options", [{"lease_s": 0}, {"lease_s": 61}, {"aside": 0}, {"shortest_s": -1}])
@pytest.mark.parametrize("name", SCHEDULES)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="give"):
        load_policy(name, **options)


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["request", "complete", "lost", "start"])), max_size=40
)


@pytest.mark.parametrize("name", [*SCHEDULES, "io-fair"])
@settings(max_examples=40, deadline=None)
@given(steps=steps, learn=st.booleans())
def test_in_any_order_of_events_one_goes_on_and_every_wait_ends(
    name: str, steps: list[tuple[str, str]], learn: bool
) -> None:
    site = IoSite(name) if name == "io-fair" else IoSite(name, learn=learn)
    site.application("a")
    site.application("b")
    for app, step in steps:
        known = site.state.io.applications.get(app)
        if step == "start":
            site.application(app)
        elif step == "lost":
            site.see(IoApplicationFinished(app=app, agent="n", host=f"{app}1", outcome="lost"))
        elif step == "request" and known is not None and not known.in_io:
            site.request(app)
        elif step == "complete" and known is not None and known.going_on:
            site.complete(app, 1.0)
        apps = site.state.io.applications.values()
        waiting = [a for a in apps if a.in_io and not a.going_on]
        assert not waiting or any(a.going_on for a in apps), "the storage is idle while one waits"
        assert all(0 < a.wanted.until_ns - site.now <= 60e9 for a in waiting)


def test_a_policy_answers_nothing_where_nothing_changes() -> None:
    site = two("io-fcfs")
    site.request("a")
    repeated = IoRequested(app="a", agent="n", op=1, bytes=1000, storage="fs")
    assert [a for a in site.see(repeated) if isinstance(a, GrantIo)] == []
