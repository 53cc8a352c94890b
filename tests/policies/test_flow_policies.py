"""Policies that act on running flows: what they ask for, that it ends, and that hostile facts do not break them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy_support import SECOND, Site, stage_in
from waystage.events import (
    AssignPaths,
    Envelope,
    Event,
    FileSystemDeclared,
    FlowEndpoint,
    FlowFinished,
    FlowProgress,
    FlowStarted,
    FlowUse,
    IoStarted,
    JobFinished,
    JobStarted,
    Pause,
    SetLoaders,
    SetMode,
    SetRate,
    StagingFinished,
    StagingStarted,
    TopologyChanged,
    WidePathDeclared,
)
from waystage.forecast.model import Forecast, Future
from waystage.interconnect.generate import leaf_spine
from waystage.policies.base import Explained, PolicyError, load_policy
from waystage.state import State

FORESEE: dict[str, Any] = {
    "candidates": ["ecmp", "demand-separation", ["demand-separation", "storage-shares"]],
    "steps": 500,
}
POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("storage-shares", {"slowdown": [[1, 1], [8, 4], [64, 100]]}),
    ("wan-yields", {"back_after_s": 2}),
    ("deadline-staging", {}),
    ("io-apart", {}),
    ("io-apart", {"base": "demand-separation"}),
    ("combined", {"policies": ["link-separation", "storage-shares", "wan-yields", "deadline-staging"]}),
    ("foresee", FORESEE),
]
NAMES = [name if "base" not in options else f"{name} on {options['base']}" for name, options in POLICIES]


def wide(flow_id: str, target: int = 0, **about: Any) -> FlowStarted:
    return FlowStarted(
        flow_id=flow_id,
        traffic="wan",
        engine="copy",
        source=FlowEndpoint(host="storage", targets=(f"fs:{target}",)),
        destination=FlowEndpoint(peer="far"),
        bytes=10**9,
        controls=("rate", "mode", "pause"),
        **about,
    )


# -- storage-shares -----------------------------------------------------------------------------------------


def loaders(site: Site) -> dict[str, int | None]:
    return {flow_id: flow.wanted.loaders for flow_id, flow in site.state.flows.items()}


def test_the_best_number_of_loaders_is_divided_and_given_back() -> None:
    site = Site("storage-shares")
    assert site.see(stage_in("a", "1")) == [SetLoaders(flow_id="a", loaders=4)]
    site.see(stage_in("b", "2"))
    assert loaders(site) == {"a": 2, "b": 2}
    site.see(FlowFinished(flow_id="a"))
    assert loaders(site) == {"b": 4}


def test_a_flow_takes_what_flows_with_a_tighter_target_leave() -> None:
    site = Site("storage-shares")
    site.see(stage_in("a", "1", targets=(0, 1)))
    for job in ("2", "3", "4"):
        site.see(stage_in(f"b{job}", job, targets=(0,)))
    site.see(stage_in("c", "5", targets=(1,)))
    assert loaders(site) == {"a": 1, "b2": 1, "b3": 1, "b4": 1, "c": 3}


def test_jobs_and_not_flows_share_and_weights_count() -> None:
    site = Site("storage-shares", weights={"2": 3.0})
    for name, job in (("a", "1"), ("b1", "2"), ("b2", "2"), ("b3", "2")):
        site.see(stage_in(name, job))
    assert loaders(site) == {"a": 1, "b1": 1, "b2": 1, "b3": 1}


def test_more_jobs_than_loaders_get_one_each_and_unknown_targets_are_left_alone() -> None:
    site = Site("storage-shares")
    for job in range(9):
        site.see(stage_in(f"f{job}", str(job)))
    site.see(FlowStarted(flow_id="x", traffic="staging", engine="load", controls=("loaders",)))
    assert set(loaders(site).values()) == {1, None}


def test_a_copy_is_left_its_share_of_a_target_and_asked_for_nothing() -> None:
    site = Site("storage-shares")
    site.see(stage_in("a", "1"))
    site.see(wide("w"))
    assert loaders(site) == {"a": 2, "w": None}
    site.see(FlowFinished(flow_id="w"))
    assert loaders(site) == {"a": 4}


# -- wan-yields ---------------------------------------------------------------------------------------------


def test_a_copy_is_modest_while_a_waiting_job_shares_its_target_and_some_seconds_after() -> None:
    site = Site("wan-yields", back_after_s=2)
    site.see(wide("w"))
    site.see(wide("elsewhere", target=3))
    site.see(JobStarted(job_id="1", nodes=("c1",)))
    site.see(StagingStarted(job_id="1", direction="in"))
    # The other copy leaves over the storage host's link outwards, as the stage-in does, but ends there.
    assert site.see(stage_in("a", "1")) == [SetMode(flow_id="w", mode="modest")]
    site.see(FlowFinished(flow_id="a"))
    site.see(StagingFinished(job_id="1", direction="in"))
    assert site.see(FlowProgress(flows=()), after_s=1.0) == []
    assert site.see(FlowProgress(flows=()), after_s=1.5) == [SetMode(flow_id="w", mode=None)]


def test_a_copy_that_a_waiting_job_needs_itself_does_not_yield() -> None:
    site = Site("wan-yields")
    site.see(StagingStarted(job_id="1", direction="in", nodes=("c1",)))
    site.see(StagingStarted(job_id="2", direction="in", nodes=("c2",)))
    site.see(wide("w", job_id="2"))
    assert site.see(stage_in("a", "1")) == []


def test_a_stage_out_and_a_computing_job_make_no_copy_yield() -> None:
    site = Site("wan-yields")
    site.see(wide("w"))
    site.see(JobStarted(job_id="1", nodes=("c1",)))
    site.see(StagingStarted(job_id="1", direction="out"))
    assert site.see(stage_in("a", "1")) == []


# -- deadline-staging ---------------------------------------------------------------------------------------


def due_in(site: Site, job: str, seconds: float) -> None:
    due_ns = site.now + round(seconds * SECOND)
    site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",), due_ns=due_ns))


def progress(flow_id: str, done: int, rate_bps: int, limited_by: str = "") -> FlowProgress:
    use = FlowUse(flow_id=flow_id, bytes_done=done, bytes=10**8, rate_bps=rate_bps, limited_by=limited_by)
    return FlowProgress(flows=(use,))


def test_a_stage_in_is_paced_to_end_when_its_job_is_due() -> None:
    site = Site("deadline-staging", margin_s=2, headroom=0.25)
    due_in(site, "1", 102.1)
    (action,) = site.see(stage_in("a", "1"))
    assert isinstance(action, SetRate)
    assert action.rate_bps == pytest.approx(1.25 * 8 * 10**8 / 99.9, rel=0.01)
    # On its way nothing changes while it keeps to what it needs.
    assert site.see(progress("a", 10**6, 10**7, "rate"), after_s=1.0) == []


def test_a_late_stage_in_is_let_go_and_others_give_up_their_headroom() -> None:
    site = Site("deadline-staging", margin_s=2, headroom=0.25)
    due_in(site, "1", 30.0)
    due_in(site, "2", 1000.0)
    site.see(stage_in("a", "1"))
    site.see(stage_in("b", "2", targets=(1,)))
    before = site.state.flows["b"].wanted.rate_bps
    assert before is not None
    site.see(progress("a", 10**6, 10**6, "network"), after_s=1.0)
    assert site.state.flows["a"].wanted.rate_bps is None
    assert site.state.flows["b"].wanted.rate_bps == pytest.approx(before / 1.25, rel=0.01)


def test_a_limit_is_lifted_when_the_job_has_begun_without_it() -> None:
    site = Site("deadline-staging")
    due_in(site, "1", 100.0)
    site.see(stage_in("a", "1"))
    assert site.state.flows["a"].wanted.rate_bps is not None
    assert site.see(StagingFinished(job_id="1", direction="in")) or True
    site.see(JobStarted(job_id="1", nodes=("c1",)))
    assert site.state.flows["a"].wanted.rate_bps is None


# -- io-apart -----------------------------------------------------------------------------------------------


def io_flow(job: str) -> FlowStarted:
    ends = {"source": FlowEndpoint(host="c1"), "destination": FlowEndpoint(host="storage")}
    return FlowStarted(flow_id=f"io{job}", traffic="io", engine="program", job_id=job, **ends)


@pytest.mark.parametrize("base", ["link-separation", "demand-separation"])
def test_measured_io_gets_core_switches_and_gives_them_back(base: str) -> None:
    site = Site("io-apart", base=base)
    site.see(TopologyChanged(topology=leaf_spine(4, 4, 4)))
    hosts = site.state.topology.compute_hosts if site.state.topology else ()
    site.see(JobStarted(job_id="1", nodes=tuple(hosts[:8])))
    site.see(StagingStarted(job_id="2", direction="in", nodes=tuple(hosts[8:12])))
    site.see(io_flow("1"))
    assert "io" not in cores(site)
    site.see(progress("io1", 10**6, 10**8), after_s=4.0)
    assert "io" in cores(site)
    if base == "link-separation":
        assert not set(cores(site)["io"]) & set(cores(site)["staging"])
    site.see(progress("io1", 10**6, 0), after_s=4.0)
    assert "io" not in cores(site)


def test_declared_io_that_is_measured_to_be_none_is_not_separated() -> None:
    site = Site("io-apart")
    site.see(JobStarted(job_id="1", nodes=("c1", "c2")))
    site.see(io_flow("1"))
    site.see(IoStarted(job_id="1"))
    assert "io" not in cores(site)


def cores(site: Site) -> dict[Any, tuple[str, ...]]:
    plan = site.state.requested
    return dict(plan.cores) if plan is not None else {}


# -- combined -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (["ecmp", "link-separation"], "both act on paths"),
        (["nothing"], "unknown policy"),
        ([{"name": "ecmp", "option": 1}], "give a name"),
        ([], "a list of 1 to"),
        ("ecmp", "a list of 1 to"),
        (["collections:OrderedDict"], "no signature found"),
    ],
)
def test_policies_that_do_not_fit_together_are_refused(policies: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        load_policy("combined", policies=policies)


def test_members_are_asked_together_and_take_the_rule_style() -> None:
    site = Site("combined", policies=["link-separation", "storage-shares"], style="per-pair")
    site.see(JobStarted(job_id="1", nodes=("c1", "c4")))
    (paths,) = site.see(StagingStarted(job_id="1", direction="in"))
    assert isinstance(paths, AssignPaths) and paths.plan.style == "per-pair"
    assert [type(action) for action in site.see(stage_in("a", "1"))] == [SetLoaders]


# -- foresee ------------------------------------------------------------------------------------------------


def test_foresee_takes_the_candidate_with_the_best_future_and_says_why() -> None:
    site = Site("foresee", candidates=["null", "storage-shares"], hold_s=0)
    site.see(JobStarted(job_id="1", nodes=("c1",)))
    for job in ("1", "2", "3"):
        site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",)))
        site.see(stage_in(f"f{job}", job, loaders=32))
    assert loaders(site) == {"f1": 1, "f2": 1, "f3": 1}
    assert site.state.reason.startswith("storage-shares: stretch foreseen: null ")


def test_foresee_lets_one_of_several_equal_stagings_go_first() -> None:
    site = Site("foresee", candidates=["null"], hold_s=100)
    for job in ("1", "2", "3"):
        site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",)))
        site.see(stage_in(f"f{job}", job, loaders=4))
    held = {flow_id for flow_id, flow in site.state.flows.items() if flow.wanted.paused}
    assert len(held) == 2
    (first,) = set(site.state.flows) - held
    site.see(FlowFinished(flow_id=first))
    assert sum(flow.wanted.paused for flow in site.state.flows.values()) == 1


def test_jobs_with_other_bottlenecks_go_on_together() -> None:
    site = Site("foresee", candidates=["null"], hold_s=100)
    # Jobs 1 and 2 read from one target, and 3 from another: one of the first two goes on beside it.
    for job, target in (("1", 0), ("2", 0), ("3", 1)):
        site.see(JobStarted(job_id=job, nodes=(f"c{job}",)))
        site.see(stage_in(f"f{job}", job, targets=(target,)))
    held = {flow_id for flow_id, flow in site.state.flows.items() if flow.wanted.paused}
    assert len(held) == 1 and held < {"f1", "f2"}


def test_no_staging_is_held_past_its_limit() -> None:
    site = Site("foresee", candidates=["null"], hold_s=20, every_s=1)
    for job in ("1", "2"):
        site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",)))
        site.see(stage_in(f"f{job}", job, loaders=4))
    assert any(flow.wanted.paused for flow in site.state.flows.values())
    for _ in range(25):
        site.see(FlowProgress(flows=tuple(FlowUse(flow_id=f) for f in list(site.state.flows))), after_s=1.0)
    assert not any(flow.wanted.paused for flow in site.state.flows.values())


def test_foresee_falls_back_where_there_is_too_much_to_foresee() -> None:
    site = Site("foresee", candidates=["null", "storage-shares"], fallback=1, most_flows=1)
    for job in ("1", "2"):
        site.see(StagingStarted(job_id=job, direction="in", nodes=("c1",)))
        site.see(stage_in(f"f{job}", job, loaders=32))
    assert site.state.reason == "storage-shares: too much to foresee (more than 1 flows)"
    assert loaders(site) == {"f1": 2, "f2": 2}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (10, "null: too much to foresee (more than 10 steps)"),
        (200, "null: stretch foreseen: "),
        (100_000, "stretch foreseen: "),
    ],
)
def test_what_a_decision_costs_is_bounded_by_its_steps(
    steps: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer steps it simulates less, and nothing where it could not tell them apart."""
    used: list[int] = []
    run = Forecast.run

    def counted(self: Forecast, *given: Any, **options: Any) -> Future:
        future = run(self, *given, **options)
        used.append(future.steps)
        return future

    monkeypatch.setattr(Forecast, "run", counted)
    candidates = ["null", "ecmp", "link-separation", "demand-separation", "storage-shares"]
    site, twin = (Site("foresee", candidates=candidates, steps=steps, hold_s=0) for _ in range(2))
    for number in range(12):
        for event in (
            JobStarted(job_id=str(number), nodes=("c1", "c2", "c3", "c4")),
            StagingStarted(job_id=str(number), direction="in"),
            stage_in(f"f{number}", str(number), targets=(number % 4,), loaders=16),
        ):
            used.clear()
            assert site.see(event) == twin.see(event)
            # What is begun is ended: a candidate's last answer may take it over by what one answer costs.
            assert sum(used) <= 2 * (steps + 100)
    assert says in site.state.reason


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"candidates": []}, "candidates"),
        ({"objective": "luck"}, "objective"),
        ({"fallback": 9}, "fallback"),
        ({"steps": 0}, "steps"),
        ({"hold_s": -1}, "hold_s"),
        ({"horizon_s": 0}, "horizon_s"),
        ({"candidates": ["ecmp", "ecmp"]}, "another name"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        load_policy("foresee", **options)


def test_a_reason_is_one_line_of_bounded_length() -> None:
    answer = Explained.by([Pause(flow_id="a")], "a\nb " * 5000)
    assert "\n" not in answer.reason and len(answer.reason) <= 2000


# -- whatever happens ---------------------------------------------------------------------------------------

JOBS = st.sampled_from(["1", "2", "3", "4"])
FLOWS = st.sampled_from(["f1", "f2", "f3", "f4", "f5", "f6"])
HUGE = st.sampled_from([-(2**63), -1, 0, 1, 10**7, 10**9, 2**62])
TARGETS = st.lists(st.sampled_from(["fs:0", "fs:1", "fs:9", "fs:", "", "other:1", ":"]), max_size=3)
ENDS = st.builds(
    FlowEndpoint,
    host=st.sampled_from(["", "c1", "c2", "storage", "edge1", "unknown"]),
    targets=TARGETS.map(tuple),
    peer=st.sampled_from(["", "far", "unknown"]),
)
CONTROLS = st.lists(st.sampled_from(["rate", "mode", "loaders", "pause"]), unique=True).map(tuple)
USES = st.builds(FlowUse, flow_id=FLOWS, bytes_done=HUGE, bytes=HUGE, rate_bps=HUGE, version=HUGE)
EVENTS = st.one_of(
    st.builds(JobStarted, job_id=JOBS, nodes=st.sampled_from([(), ("c1",), ("c1", "c4"), ("unknown",)])),
    st.builds(JobFinished, job_id=JOBS),
    st.builds(StagingStarted, job_id=JOBS, direction=st.sampled_from(["in", "out"]), bytes=HUGE, due_ns=HUGE),
    st.builds(StagingFinished, job_id=JOBS, direction=st.sampled_from(["in", "out"])),
    st.builds(
        FlowStarted,
        flow_id=FLOWS,
        traffic=st.sampled_from(["mpi", "staging", "io", "wan"]),
        engine=st.just("x"),
        job_id=st.one_of(st.none(), JOBS),
        source=ENDS,
        destination=ENDS,
        bytes=HUGE,
        controls=CONTROLS,
        loaders=st.sampled_from([-1, 0, 1, 64, 2**40]),
    ),
    st.builds(FlowProgress, flows=st.lists(USES, max_size=4).map(tuple)),
    st.builds(FlowFinished, flow_id=FLOWS),
    st.builds(WidePathDeclared, peer=st.just("far"), host=st.just("unknown"), rate_bps=HUGE),
    st.builds(FileSystemDeclared, file_system=st.just("fs"), targets=st.just(3), target_bps=HUGE),
)
STEPS = st.lists(st.tuples(EVENTS, st.floats(0, 8)), max_size=12)


@pytest.mark.parametrize(("name", "options"), POLICIES, ids=NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_whatever_happens_decisions_are_deterministic_and_end(
    name: str, options: dict[str, Any], steps: list[tuple[Event, float]]
) -> None:
    """No exception; two replicas agree, also one restored from a snapshot; repeated facts lead to no more actions."""
    site, twin = Site(name, **options), Site(name, **options)
    for at, (event, after_s) in enumerate(steps):
        before = site.see(event, after_s)
        assert before == twin.see(event, after_s)
        if at % 4 == 3:
            twin.engine.state = State.restore(twin.state.snapshot())
        for flow in site.state.flows.values():
            assert flow.wanted.loaders is None or flow.wanted.loaders >= 1, "a job without loaders starves"
            assert flow.wanted.rate_bps is None or flow.wanted.rate_bps > 0, "a job without a rate starves"
    assert not site.state.difference(twin.state)
    # Nothing happens any more but reports of the same: what is asked for settles.
    uses = tuple(
        FlowUse(flow_id=f.flow_id, bytes_done=f.bytes_done, bytes=f.bytes) for f in site.state.flows.values()
    )
    quiet = 0
    for _ in range(12):
        quiet = quiet + 1 if not site.see(FlowProgress(flows=uses), after_s=0.0) else 0
    assert quiet >= 8, "its own effects lead to new answers for ever"


@pytest.mark.parametrize(("name", "options"), POLICIES, ids=NAMES)
def test_ten_thousand_flows_take_no_policy_more_than_seconds(name: str, options: dict[str, Any]) -> None:
    site = Site(name, **options)
    for job in range(100):
        site.state.apply(
            Envelope(
                event=StagingStarted(
                    job_id=str(job), direction="in", nodes=("c1",), due_ns=site.now + 10**11
                ),
                event_id="",
                time_ns=site.now,
            )
        )
    for number in range(10_000):
        event = stage_in(f"f{number}", str(number % 100), targets=(number % 4,))
        site.state.apply(Envelope(event=event, event_id="", time_ns=site.now))
    site.see(wide("w"))
    uses = tuple(FlowUse(flow_id=f"f{n}", bytes_done=n, bytes=10**8, rate_bps=n) for n in range(10_000))
    for event in (FlowProgress(flows=uses), stage_in("new", "1"), FlowFinished(flow_id="new")):
        began = time.process_time()
        site.see(event)
        assert time.process_time() - began < 5.0
