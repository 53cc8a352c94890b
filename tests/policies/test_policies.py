"""What each shipped policy asks for, event by event, on known topologies."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import spread
from waystage.events import (
    AssignPaths,
    DemandDeclared,
    Envelope,
    Event,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    LinkUse,
    PathPlan,
    PortUse,
    StagingFinished,
    StagingStarted,
    SwitchDown,
    SwitchUp,
    TopologyChanged,
)
from waystage.interconnect.generate import leaf_spine, paper
from waystage.policies.base import SHIPPED, Policy, PolicyError, load_policy
from waystage.policies.demand_separation import divide
from waystage.policies.link_separation import Request, request_of
from waystage.state import State
from waystage.topology import Topology

SECOND = 1_000_000_000
STYLES = ["labelled", "per-pair"]


class Control:
    """Folds events and records what the policy asks for, as the global controller does."""

    def __init__(self, policy: Policy, topology: Topology) -> None:
        self.policy = policy
        self.state = State()
        self.asked: list[PathPlan] = []
        self.now = SECOND
        self.see(TopologyChanged(topology=topology))

    def see(self, event: Event, after_s: float = 0.1) -> list[PathPlan]:
        """The plans the event leads to."""
        self.now += int(after_s * SECOND)
        self.state.apply(Envelope(event=event, event_id=str(self.now), time_ns=self.now))
        before = self.state.snapshot()
        actions: Sequence[object] = self.policy(event, self.state)
        assert self.state.snapshot() == before, "a policy must not change the state"
        plans = [action.plan for action in actions if isinstance(action, AssignPaths)]
        for plan in plans:
            self.state.record_request(AssignPaths(plan=plan))
        self.asked += plans
        return plans

    @property
    def plan(self) -> PathPlan:
        assert self.state.requested is not None
        return self.state.requested


def use(topology: Topology, interval_s: float = 1.0, **bps: float) -> LinkUse:
    """A measurement in which each class has the given total rate, all on the first uplink."""
    edge = topology.edge_switches[0]
    port = next(link.port_at(edge) for link in topology.switch_links if edge in (link.a, link.b))
    counts = {traffic: int(rate * interval_s / 8) for traffic, rate in bps.items()}
    total = sum(counts.values())
    ports = (PortUse(node=edge, port=port, bytes=total, by_class=counts),)  # type: ignore[arg-type]
    return LinkUse(interval_ns=int(interval_s * SECOND), ports=ports)


# -- every policy ----------------------------------------------------------------------------------------


NEEDED: dict[str, dict[str, Any]] = {
    "primitive-paths": {"modules": [{"primitive": "bcast", "module": "null"}]},
}
"""Options without which a policy is refused."""


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_policy_is_loaded_by_its_short_name(name: str) -> None:
    assert load_policy(name, **NEEDED.get(name, {})).name == name


def test_a_policy_that_is_not_there_is_named_with_what_there_is_instead() -> None:
    with pytest.raises(PolicyError, match=r"'link-seperation'.*link-separation"):
        load_policy("link-seperation")
    with pytest.raises(PolicyError, match="style 'fast'"):
        load_policy("ecmp", style="fast")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class P(:\n", "fails when imported: SyntaxError"),
        ("raise RuntimeError('no licence')", "fails when imported: RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "fails when imported: SystemExit: 3"),
        ("P = 3", "is a int, and no class"),
        ("class P:\n    def __init__(self): raise KeyError('x')", "cannot be built: KeyError: 'x'"),
        ("def P(): return 3", "needs a `name`"),
        ("Q = 3", "has no P"),
    ],
)
def test_a_broken_policy_of_a_user_is_named_with_what_breaks(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = f"users_policy_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(PolicyError, match=r"PYTHONPATH=\."):
        load_policy(f"{module}:P")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PolicyError, match=re.escape(words)) as caught:
        load_policy(f"{module}:P")
    assert "\n" not in str(caught.value)


def test_the_template_never_acts() -> None:
    control = Control(load_policy("null"), paper())
    control.see(JobStarted(job_id="1", nodes=("c1", "c4")))
    control.see(StagingStarted(job_id="1"))
    assert control.asked == []


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["ecmp", "link-separation", "demand-separation"])
def test_a_repeated_event_asks_for_nothing_new(name: str, style: str) -> None:
    control = Control(load_policy(name, style=style), paper())
    for event in (JobStarted(job_id="1", nodes=("c1", "c4")), StagingStarted(job_id="1", bytes=5)):
        control.see(event)
        assert control.see(event) == []


# -- ecmp, d-mod-k -----------------------------------------------------------------------------------------


def test_ecmp_asks_once_and_ignores_jobs() -> None:
    control = Control(load_policy("ecmp", seed=7), paper())
    control.see(JobStarted(job_id="1", nodes=("c1", "c4")))
    control.see(StagingStarted(job_id="1"))
    assert control.asked == [PathPlan(seed=7)]


def test_ecmp_per_pair_lists_a_shortest_path_for_every_ordered_pair_over_its_slots_core() -> None:
    topology = leaf_spine(3, 3, 4)
    control = Control(load_policy("ecmp", style="per-pair", seed=3), topology)
    paths = {(p.path[0], p.path[-1]): p.path for p in control.plan.base_pairs}
    names = [host.name for host in topology.hosts]
    assert set(paths) == set(itertools.permutations(names, 2))
    for (src, dst), path in paths.items():
        assert path in topology.shortest_paths(src, dst)
        if len(path) == 5:
            assert path[2] == spread.core_of_pair(topology, src, dst, seed=3)


def test_ecmp_per_pair_goes_round_a_switch_that_is_down_and_comes_back() -> None:
    control = Control(load_policy("ecmp", style="per-pair"), paper())
    healthy = control.plan
    control.see(SwitchDown(switch="core1"))
    assert all("core1" not in pair.path for pair in control.plan.base_pairs)
    assert len(control.plan.base_pairs) == len(healthy.base_pairs)
    control.see(SwitchUp(switch="core1"))
    assert control.plan == healthy


def test_the_hash_depends_on_the_seed_and_uses_every_core_switch() -> None:
    topology = leaf_spine(4, 4, 4)

    def cores(seed: int) -> list[str]:
        pairs = itertools.permutations([h.name for h in topology.hosts], 2)
        return [spread.core_of_pair(topology, src, dst, seed=seed) for src, dst in pairs]

    assert cores(1) != cores(2)
    counts = [cores(1).count(core) for core in topology.core_switches]
    assert max(counts) < 2 * min(counts)


def test_d_mod_k_gives_consecutive_destinations_consecutive_core_switches() -> None:
    topology = leaf_spine(4, 4, 4)
    control = Control(load_policy("d-mod-k"), topology)
    assert control.plan.spread == "destination"
    for index, host in enumerate(topology.hosts[1:], start=1):
        core = spread.core_of_pair(topology, topology.hosts[0].name, host.name, spread="destination")
        assert core == topology.core_switches[index % 4]


# -- link-separation: Fig. 8 and Algorithm 1 -------------------------------------------------------------------


def test_the_four_requests_of_the_flowchart() -> None:
    control = Control(load_policy("link-separation"), paper())

    def asked(event: Event) -> Request | None:
        control.now += SECOND
        control.state.apply(Envelope(event=event, event_id="x", time_ns=control.now))
        request = request_of(event, control.state, settled=True)
        for action in control.policy(event, control.state):
            assert isinstance(action, AssignPaths)
            control.state.record_request(action)
        return request

    assert asked(JobStarted(job_id="1", nodes=("c1", "c4"))) is None
    assert asked(StagingStarted(job_id="1")) is Request.ON_STATUS
    assert asked(JobStarted(job_id="2", nodes=("c2", "c5"))) is Request.PATH_SEARCH
    assert asked(StagingStarted(job_id="2")) is Request.PATH_SEARCH
    assert asked(StagingFinished(job_id="1")) is Request.PATH_DELETION
    assert asked(JobFinished(job_id="1")) is Request.PATH_DELETION
    assert asked(StagingFinished(job_id="2")) is Request.OFF_STATUS
    assert asked(JobFinished(job_id="2")) is None


def test_labelled_separation_names_disjoint_core_switches_and_ends_with_the_first_plan() -> None:
    control = Control(load_policy("link-separation", seed=5), paper())
    first = control.plan
    control.see(JobStarted(job_id="1", nodes=("c1", "c4", "c5")))
    (on,) = control.see(StagingStarted(job_id="1"))
    assert on.separated
    assert sorted(on.cores["mpi"] + on.cores["staging"]) == ["core1", "core2"]
    assert control.see(JobStarted(job_id="2", nodes=("c2", "c6"))) == []
    (off,) = control.see(StagingFinished(job_id="1"))
    assert off == first


def test_the_busier_half_goes_to_inter_node_communication() -> None:
    topology = leaf_spine(2, 8, 4, storage_hosts=2)
    for seed in range(20):
        control = Control(load_policy("link-separation", seed=seed), topology)
        nodes = ("c1", "c2", "c9", "c10")
        control.see(JobStarted(job_id="1", nodes=nodes))
        (plan,) = control.see(StagingStarted(job_id="2", nodes=("c3",)))
        held = dict.fromkeys(topology.core_switches, 0)
        for src, dst in itertools.permutations(nodes, 2):
            if topology.attachment[src][0] != topology.attachment[dst][0]:
                held[spread.core_of_pair(topology, src, dst, seed=seed)] += 1
        least_of_mpi = min(held[core] for core in plan.cores["mpi"])
        assert all(held[core] <= least_of_mpi for core in plan.cores["staging"])


def test_algorithm_1_lists_storage_and_node_pairs_in_their_subnetworks() -> None:
    topology = paper()
    control = Control(load_policy("link-separation", style="per-pair"), topology)
    off = control.plan
    control.see(JobStarted(job_id="1", nodes=("c1", "c2", "c4")))
    (on,) = control.see(StagingStarted(job_id="1"))
    assert on.base_pairs == off.base_pairs, "OFF entries are never removed"
    listed = {(pair.path[0], pair.path[-1]): pair for pair in on.pairs}
    nodes = ("c1", "c2", "c4")
    staging = {(s, d) for n in nodes for s, d in (("storage", n), (n, "storage"))}
    assert set(listed) == staging | set(itertools.permutations(nodes, 2))
    for pair in on.pairs:
        cores = {node for node in pair.path if node in topology.core_switches}
        assert pair.traffic is not None
        assert cores <= set(on.cores[pair.traffic])
    (searched,) = control.see(JobStarted(job_id="2", nodes=("c3", "c5")))
    assert set(on.pairs) < set(searched.pairs)
    assert searched.cores == on.cores, "a path search keeps the allocation"
    (deleted,) = control.see(JobFinished(job_id="2"))
    assert set(deleted.pairs) == set(on.pairs)
    (end,) = control.see(StagingFinished(job_id="1"))
    assert end == off


def test_io_of_computing_jobs_gets_its_own_core_switches_where_there_are_three() -> None:
    for spines in (3, 4, 8):
        control = Control(load_policy("link-separation"), leaf_spine(2, 4, spines))
        control.see(JobStarted(job_id="1", nodes=("c1", "c5")))
        control.see(StagingStarted(job_id="2", nodes=("c2",)))
        (plan,) = control.see(IoStarted(job_id="1"))
        sets = [set(plan.cores[traffic]) for traffic in ("mpi", "staging", "io")]
        assert all(sets) and sum(map(len, sets)) == len(set().union(*sets)) == spines
    control = Control(load_policy("link-separation"), paper())
    (plan,) = control.see(IoStarted(job_id="1"))
    assert plan.separated and plan.cores["io"] == plan.cores["staging"] != plan.cores["mpi"]
    (off,) = control.see(IoFinished(job_id="1"))
    assert not off.separated


@pytest.mark.parametrize("style", STYLES)
def test_a_core_switch_that_fails_under_on_status_is_given_up_and_taken_again(style: str) -> None:
    control = Control(load_policy("link-separation", style=style), leaf_spine(2, 4, 4))
    control.see(JobStarted(job_id="1", nodes=("c1", "c5")))
    control.see(StagingStarted(job_id="1"))
    lost = control.plan.cores["mpi"][0]
    control.see(SwitchDown(switch=lost))
    assert lost not in set().union(*control.plan.cores.values())
    assert all(lost not in pair.path for pair in (*control.plan.base_pairs, *control.plan.pairs))
    assert set(control.plan.cores["mpi"]).isdisjoint(control.plan.cores["staging"])
    control.see(SwitchUp(switch=lost))
    assert lost in set().union(*control.plan.cores.values())


def test_one_core_switch_is_never_divided() -> None:
    for name in ("link-separation", "demand-separation"):
        control = Control(load_policy(name), leaf_spine(2, 4, 1))
        control.see(JobStarted(job_id="1", nodes=("c1", "c5")))
        control.see(StagingStarted(job_id="2", nodes=("c2",)))
        assert [plan.separated for plan in control.asked] == [False]


# -- demand-separation ---------------------------------------------------------------------------------------------


def sixteen() -> Topology:
    """Four edge and four core switches, uplinks of half a host's link: two to one oversubscribed."""
    return leaf_spine(4, 4, 4, storage_hosts=2, uplink_bps=50_000_000)


def on_two_leaves(job_id: str, first: int) -> JobStarted:
    return JobStarted(job_id=job_id, nodes=(f"c{first}", f"c{first + 4}"))


def test_nothing_is_divided_while_one_class_has_all_the_traffic() -> None:
    control = Control(load_policy("demand-separation"), sixteen())
    control.see(StagingStarted(job_id="1", nodes=("c1", "c5"), bytes=10**9))
    assert not control.plan.separated
    control.see(JobStarted(job_id="2", nodes=("c2", "c6")))
    assert control.plan.separated
    control.see(StagingFinished(job_id="1"))
    assert not control.plan.separated


def test_core_switches_follow_what_each_class_could_fill() -> None:
    control = Control(load_policy("demand-separation"), sixteen())
    control.see(StagingStarted(job_id="s", nodes=("c1",), bytes=10**9))
    for job in range(3):
        control.see(on_two_leaves(str(job), 2 + job))
    communication_heavy = {c: len(names) for c, names in control.plan.cores.items()}
    assert communication_heavy["mpi"] == 3 and communication_heavy["staging"] == 1
    for job in range(2):
        control.see(JobFinished(job_id=str(job)))
    control.see(StagingStarted(job_id="t", nodes=("c1", "c2", "c6", "c10"), bytes=10**9))
    staging_heavy = {c: len(names) for c, names in control.plan.cores.items()}
    assert staging_heavy["staging"] >= 2


def test_a_declared_rate_counts_at_once() -> None:
    control = Control(load_policy("demand-separation"), sixteen())
    control.see(StagingStarted(job_id="s", nodes=("c1", "c2"), bytes=10**9))
    control.see(on_two_leaves("m", 3))
    before = len(control.plan.cores["mpi"])
    control.see(DemandDeclared(job_id="m", traffic="mpi", rate_bps=5_000_000))
    assert before == 2
    assert len(control.plan.cores["mpi"]) == 1 and len(control.plan.cores["staging"]) == 3


def test_a_measured_low_rate_gives_cores_away_and_saturation_takes_them_back() -> None:
    topology = sixteen()
    control = Control(load_policy("demand-separation"), topology)
    control.see(StagingStarted(job_id="s", nodes=("c1", "c6", "c10"), bytes=10**9))
    for job in range(3):
        control.see(on_two_leaves(str(job), 2 + job))
    full = len(control.plan.cores["mpi"])
    assert full >= 2
    assert control.see(use(topology, mpi=10e6, staging=90e6), after_s=0.5) == [], "too early to tell"
    control.see(use(topology, mpi=10e6, staging=90e6), after_s=4)
    assert len(control.plan.cores["mpi"]) == 1
    control.see(use(topology, mpi=300e6, staging=90e6), after_s=4)
    assert len(control.plan.cores["mpi"]) == full


def test_small_changes_of_demand_move_nothing() -> None:
    topology = sixteen()
    control = Control(load_policy("demand-separation"), topology)
    control.see(StagingStarted(job_id="s", nodes=("c1", "c6", "c10"), bytes=10**9))
    control.see(on_two_leaves("m", 3))
    control.see(DemandDeclared(job_id="m", traffic="mpi", rate_bps=100_000_000))
    asked = len(control.asked)
    for rate in (98_000_000, 101_000_000, 97_000_000, 102_000_000):
        control.see(DemandDeclared(job_id="m", traffic="mpi", rate_bps=rate))
    assert len(control.asked) == asked


def test_a_light_bulk_class_shares_a_core_switch_and_does_not_flap() -> None:
    control = Control(load_policy("demand-separation"), sixteen())
    control.see(on_two_leaves("m", 3))
    control.see(StagingStarted(job_id="s", nodes=("c1",)))
    control.see(DemandDeclared(job_id="s", traffic="staging", rate_bps=5_000_000))
    assert len(control.plan.cores["mpi"]) == 4 and len(control.plan.cores["staging"]) == 1
    asked = len(control.asked)
    for rate in (14_000_000, 11_000_000, 14_000_000):
        control.see(DemandDeclared(job_id="s", traffic="staging", rate_bps=rate))
    assert len(control.asked) == asked
    control.see(DemandDeclared(job_id="s", traffic="staging", rate_bps=50_000_000))
    assert set(control.plan.cores["mpi"]).isdisjoint(control.plan.cores["staging"])


def test_a_third_class_is_divided_too() -> None:
    control = Control(load_policy("demand-separation"), sixteen())
    control.see(on_two_leaves("m", 3))
    control.see(StagingStarted(job_id="s", nodes=("c1",)))
    control.see(IoStarted(job_id="m"))
    sets = [set(control.plan.cores[traffic]) for traffic in ("mpi", "staging", "io")]
    assert all(sets) and sum(map(len, sets)) == len(set().union(*sets)) == 4


@given(
    demands=st.lists(st.floats(0.01, 100), min_size=1, max_size=4),
    extra=st.integers(min_value=0, max_value=12),
)
def test_no_class_starves_and_no_other_division_has_a_smaller_worst_slowdown(
    demands: list[float], extra: int
) -> None:
    names = ("mpi", "staging", "io", "wan")
    heavy = dict(zip(names, demands, strict=False))
    cores = len(heavy) + extra
    shares = divide(heavy, cores)  # type: ignore[arg-type]
    assert sum(shares.values()) == cores and min(shares.values()) >= 1
    mine = max(heavy[str(c)] / n for c, n in shares.items())
    for other in itertools.product(range(1, cores + 1), repeat=len(heavy)):
        if sum(other) == cores:
            assert mine <= max(d / n for d, n in zip(heavy.values(), other, strict=True)) + 1e-9


events = st.one_of(
    st.builds(
        JobStarted,
        job_id=st.sampled_from("abc"),
        nodes=st.lists(st.sampled_from([f"c{i}" for i in range(1, 9)]), max_size=4).map(tuple),
    ),
    st.builds(JobFinished, job_id=st.sampled_from("abc")),
    st.builds(StagingStarted, job_id=st.sampled_from("abc"), direction=st.sampled_from(["in", "out"])),
    st.builds(StagingFinished, job_id=st.sampled_from("abc"), direction=st.sampled_from(["in", "out"])),
    st.builds(IoStarted, job_id=st.sampled_from("abc")),
    st.builds(IoFinished, job_id=st.sampled_from("abc")),
    st.builds(
        DemandDeclared,
        job_id=st.sampled_from("abc"),
        traffic=st.sampled_from(["mpi", "staging", "io", "wan"]),
        rate_bps=st.integers(0, 400_000_000),
    ),
    st.builds(SwitchDown, switch=st.sampled_from(["core1", "core2", "edge1"])),
    st.builds(SwitchUp, switch=st.sampled_from(["core1", "core2", "edge1"])),
)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["link-separation", "demand-separation"]),
    style=st.sampled_from(STYLES),
    story=st.lists(events, max_size=25),
)
def test_whatever_happens_a_plan_names_live_core_switches_and_every_active_class_has_one(
    name: str, style: str, story: list[Event]
) -> None:
    topology = leaf_spine(2, 5, 3, storage_hosts=1)
    control = Control(load_policy(name, style=style), topology)
    for event in story:
        control.see(event, after_s=1)
        again = control.policy(event, control.state)
        assert not again, "asked for twice"
        plan, state = control.plan, control.state
        live = state.live_topology
        assert live is not None
        for cores in plan.cores.values():
            assert cores and all(live.adjacency[core] for core in cores)
        for pair in plan.pairs:
            assert all(live.link_between(a, b) for a, b in itertools.pairwise(pair.path))
        if name == "link-separation":
            usable = [core for core in topology.core_switches if live.adjacency[core]]
            assert plan.separated == (bool(state.staging_jobs or state.io_jobs) and len(usable) > 1)
