"""Multicast trees of programs: the least loaded, bounded, kept, given back, and none over switches that cannot copy."""

from __future__ import annotations

from typing import Any

import pytest

from waystage.events import (
    AssignPaths,
    CollectiveDeclared,
    Envelope,
    Event,
    LinkUse,
    MpiProgramFinished,
    MpiRanksReported,
    PathPlan,
    PathsRefused,
    SwitchDown,
    TopologyChanged,
)
from waystage.events.interconnect import PortUse
from waystage.interconnect.generate import leaf_spine
from waystage.policies.base import PolicyError, load_policy
from waystage.policies.multicast_trees import MOST_OF_USER, located, tree_number
from waystage.state import State

TOPOLOGY = leaf_spine(4, 2, 2, storage_hosts=0)
HOSTS = [host.name for host in TOPOLOGY.hosts]


class Controlled:
    def __init__(self, **options: Any) -> None:
        self.policy = load_policy("multicast-trees", **options)
        self.state = State()
        self.see(TopologyChanged(topology=TOPOLOGY))

    def see(self, *events: Event) -> None:
        for event in events:
            self.state.apply(Envelope(event=event, event_id="e", time_ns=self.state.time_ns + 1))
            for action in self.policy(event, self.state):
                assert isinstance(action, AssignPaths)
                self.state.record_request(action)

    def program(self, app: str, hosts: list[str], key: str = "k") -> None:
        self.report(app, hosts)
        self.ask(app, key, range(len(hosts)))

    def report(self, app: str, hosts: list[str]) -> None:
        for rank, host in enumerate(hosts):
            self.see(MpiRanksReported(app=app, agent="n1", host=host, ranks=(rank,), size=len(hosts)))

    def ask(self, app: str, key: str, ranks: Any) -> None:
        self.see(
            CollectiveDeclared(
                app=app,
                agent="n1",
                key=key,
                primitive="bcast",
                algorithm="multicast",
                bytes=0,
                ranks=tuple(ranks),
            )
        )

    @property
    def plan(self) -> PathPlan:
        assert self.state.requested is not None
        return self.state.requested


@pytest.mark.parametrize("base", ["ecmp", "collective-paths", "link-separation"])
def test_a_program_has_one_tree_for_the_same_hosts_and_gives_it_back(base: str) -> None:
    control = Controlled(base=base)
    before = control.plan
    control.program("0/a", HOSTS[:4])
    control.ask("0/a", "reversed", reversed(range(4)))
    control.ask("0/a", "half", range(2))
    assert [tree.hosts for tree in control.plan.multicast.values()] == [tuple(HOSTS[:4]), tuple(HOSTS[:2])]
    assert tree_number(control.state, control.plan, "0/a", "reversed") == 0
    control.program("1/b", HOSTS[2:])
    assert len(control.plan.multicast) == 3
    for host in HOSTS[:4]:
        control.see(MpiProgramFinished(app="0/a", agent="n1", host=host))
    assert {tree.app for tree in control.plan.multicast.values()} == {"1/b"}
    for host in HOSTS[2:]:
        control.see(MpiProgramFinished(app="1/b", agent="n1", host=host))
    assert control.plan == before


def test_the_tree_avoids_what_is_loaded_and_other_trees() -> None:
    control = Controlled()
    loaded = TOPOLOGY.core_switches[0]
    ports = [k.port_at(loaded) for k in TOPOLOGY.adjacency[loaded]]
    capacity = TOPOLOGY.links[0].capacity_bps
    use = PortUse(node=loaded, port=ports[0], bytes=capacity // 8)
    control.see(LinkUse(interval_ns=10**9, ports=(use,)))
    control.program("0/a", HOSTS)
    assert control.plan.multicast[0].core != loaded
    control.see(LinkUse(interval_ns=10**9, ports=()))
    control.program("0/b", HOSTS)
    assert control.plan.multicast[1].core == loaded, "the other tree's links are in use"


def test_it_waits_until_all_ranks_are_known() -> None:
    control = Controlled()
    control.report("0/a", HOSTS[:2])
    control.ask("0/a", "k", range(3))
    assert not control.plan.multicast and not located(control.state, "0/a", "k")
    control.see(MpiRanksReported(app="0/a", agent="n2", host=HOSTS[5], ranks=(2,), size=3))
    assert located(control.state, "0/a", "k") and len(control.plan.multicast) == 1


def test_one_user_cannot_take_all_trees() -> None:
    control = Controlled()
    for at in range(MOST_OF_USER + 5):
        control.program(f"7/{at}", HOSTS[:3])
    control.program("8/a", HOSTS[:3])
    users = [tree.app.partition("/")[0] for tree in control.plan.multicast.values()]
    assert users.count("7") == MOST_OF_USER and users.count("8") == 1


def test_a_failed_core_switch_and_one_that_cannot_copy_are_left() -> None:
    control = Controlled()
    control.program("0/a", HOSTS)
    first = control.plan.multicast[0].core
    control.see(SwitchDown(switch=first))
    second = control.plan.multicast[0].core
    assert second != first
    control.see(PathsRefused(cause_id="", switch=second, reason="no such type", copies=True))
    assert not control.plan.multicast
    control.see(PathsRefused(cause_id="", switch=TOPOLOGY.edge_switches[0], reason="another"))
    assert not control.plan.multicast


@pytest.mark.parametrize("options", [{"style": "per-pair"}, {"base": "io-fair"}, {"base": "nothing"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        load_policy("multicast-trees", **options)
