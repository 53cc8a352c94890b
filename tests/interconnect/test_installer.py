"""The installer on switches in software: traffic keeps a path whatever refuses, is away or fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from waystage.events import PathPlan
from waystage.interconnect import planner
from waystage.interconnect.discovery import View
from waystage.interconnect.generate import fat_tree, paper
from waystage.interconnect.installer import Changes, Installer, changed
from waystage.interconnect.labels import label_of
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, Group, SwitchRules
from waystage.interconnect.soft_table import Packet, SoftNetwork
from waystage.topology import Topology

EMPTY = SwitchRules()


class Switches:
    """Software switches behind an installer: they may refuse, fall silent, or be away."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.held: dict[str, SwitchRules] = {s.name: EMPTY for s in topology.switches}
        self.refuse: Callable[[str, Change], bool] = lambda switch, change: False
        self.silent: set[str] = set()
        self.sent = 0
        self.slept: list[float] = []
        self.installer = self.restart()

    def restart(self) -> Installer:
        self.installer = Installer(self.send, self.read, sleep=self.slept.append)
        for switch, held in self.held.items():
            self.installer.connected(switch, held)
        return self.installer

    def send(self, changes: Changes) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        for switch, items in changes.items():
            if switch in self.silent:
                outcomes[switch] = Outcome(error="it did not answer", unknown=True)
            elif any(self.refuse(switch, change) for change in items):
                outcomes[switch] = Outcome(error="it refused", lasting=True)
            else:
                self.held[switch] = changed(self.held[switch], items)
                self.sent += len(items)
                outcomes[switch] = Outcome()
        return outcomes

    def read(self, switch: str) -> SwitchRules | None:
        return None if switch in self.silent else self.held[switch]

    def undelivered(self, live: Topology) -> list[tuple[str, str]]:
        network = SoftNetwork(self.topology, live, self.held)
        macs = view_of(self.topology).macs
        found = []
        for src, dst in itertools.permutations(live.attachment, 2):
            source = int(macs[src].replace(":", ""), 16)
            packet = Packet(eth_src=source, eth_dst=label_of(self.topology, dst))
            journey = network.send(src, packet)
            if (journey.outcome, journey.host) != ("delivered", dst):
                found.append((src, dst))
        return found


def view_of(topology: Topology, live: Topology | None = None) -> View:
    macs = {h.name: f"02:42:00:00:00:{i:02x}" for i, h in enumerate(topology.hosts)}
    return View(topology=topology, live=live or topology, macs=macs, ips={})


def in_force(topology: Topology) -> tuple[Topology, Switches]:
    """Switches that hold the plan of a quiet fabric."""
    switches = Switches(topology)
    switches.installer.apply(view_of(topology), PathPlan())
    return topology, switches


def separated(topology: Topology) -> PathPlan:
    cores = topology.core_switches
    half = len(cores) // 2
    return PathPlan(separated=True, cores={"mpi": cores[:half], "staging": cores[half:]})


def test_a_plan_in_force_needs_no_message_not_even_after_a_restart() -> None:
    topology = paper()
    switches = Switches(topology)
    first = switches.installer.apply(view_of(topology), PathPlan())
    assert first.messages == switches.sent > 0
    assert first.switches == len(topology.switches)
    assert switches.undelivered(topology) == []
    assert switches.installer.apply(view_of(topology), PathPlan()).messages == 0
    assert switches.restart().apply(view_of(topology), PathPlan()).messages == 0
    unknown = View(topology=topology, live=topology, macs={}, ips={})
    result = switches.restart().apply(unknown, PathPlan())
    assert (result.messages, result.unclean) == (0, False), "addresses come from the rules"


def test_a_switch_over_only_moves_groups_at_the_edge_and_leaves_nothing_to_clean() -> None:
    topology, switches = in_force(paper())
    seen: list[Change] = []
    switches.refuse = lambda _, change: bool(seen.append(change))
    result = switches.installer.apply(view_of(topology), separated(topology))
    assert result.switches == len(topology.edge_switches)
    assert all(isinstance(change.item, Group) for change in seen)
    assert not result.unclean
    assert switches.undelivered(topology) == []


def test_status_that_comes_back_sends_what_it_sent_before_and_holds_the_same() -> None:
    topology, switches = in_force(paper())
    rounds = []
    for _ in range(3):
        on = switches.installer.apply(view_of(topology), separated(topology)).messages
        held_on = dict(switches.held)
        off = switches.installer.apply(view_of(topology), PathPlan()).messages
        rounds.append((on, off, held_on, dict(switches.held)))
    assert rounds[0][0] == rounds[0][1] > 0
    assert rounds[1:] == rounds[:1] * 2
    assert switches.undelivered(topology) == []


def test_a_refusal_leaves_every_switch_with_what_it_held() -> None:
    topology, switches = in_force(paper())
    before = dict(switches.held)
    last = topology.edge_switches[-1]
    switches.refuse = lambda switch, _: switch == last
    result = switches.installer.apply(view_of(topology), separated(topology))
    assert [(r.switch, r.reason, r.lasting) for r in result.refused] == [(last, "it refused", True)]
    assert switches.held == before
    switches.refuse = lambda switch, change: False
    assert switches.installer.apply(view_of(topology), separated(topology)).refused == ()
    assert switches.undelivered(topology) == []


def test_a_silent_switch_is_taken_for_lost_and_caught_up_when_it_returns() -> None:
    topology, switches = in_force(paper())
    last = topology.edge_switches[-1]
    switches.silent = {last}
    result = switches.installer.apply(view_of(topology), separated(topology))
    assert [(r.switch, r.lasting) for r in result.refused] == [(last, False)]
    assert last in switches.installer.lost
    assert switches.undelivered(topology) == []
    again = switches.installer.apply(view_of(topology), separated(topology))
    assert [r.switch for r in again.refused] == [last], "the others have moved, it is still named"
    switches.silent = set()
    switches.installer.connected(last, switches.held[last])
    result = switches.installer.apply(view_of(topology), separated(topology))
    assert result.refused == ()
    assert result.switches == 1
    assert switches.undelivered(topology) == []


def test_after_a_failure_old_rules_are_cleaned_in_a_separate_step() -> None:
    topology, switches = in_force(fat_tree(4))
    live = topology.without([topology.switch_links[0].name])
    result = switches.installer.apply(view_of(topology, live), PathPlan())
    assert result.unclean
    assert switches.undelivered(live) == []
    rules = sum(len(held.rules) for held in switches.held.values())
    cleaned = switches.installer.clean()
    assert cleaned.messages > 0
    assert sum(len(held.rules) for held in switches.held.values()) < rules
    assert switches.undelivered(live) == []
    assert switches.installer.apply(view_of(topology, live), PathPlan()).messages == 0
    back = switches.installer.apply(view_of(topology), PathPlan())
    assert back.refused == ()
    assert switches.undelivered(topology) == []


def test_a_switch_without_control_is_used_as_long_as_it_need_not_change() -> None:
    topology, switches = in_force(fat_tree(4))
    core = topology.core_switches[0]
    switches.installer.disconnected(core)
    switches.refuse = lambda switch, _: switch == core
    assert switches.installer.apply(view_of(topology), separated(topology)).refused == ()
    assert switches.undelivered(topology) == []
    assert uses(switches, core)


def test_a_switch_without_control_that_would_need_a_change_is_planned_around() -> None:
    topology, switches = in_force(fat_tree(4))
    core = topology.core_switches[0]
    switches.installer.disconnected(core)
    switches.refuse = lambda switch, _: switch == core
    # This failure changes the tree of that core switch, whose new rules it cannot get.
    link = next(link for link in topology.adjacency[core])
    live = topology.without([link.name])
    assert switches.installer.apply(view_of(topology, live), PathPlan()).refused == ()
    assert switches.undelivered(live) == []
    assert not uses(switches, core)
    assert switches.installer.clean().unclean, "what the lost switch may still send by is kept"
    switches.refuse = lambda switch, change: False
    switches.installer.connected(core, switches.held[core])
    switches.installer.apply(view_of(topology, live), PathPlan())
    switches.installer.clean()
    assert switches.undelivered(live) == []
    assert switches.installer.held == planner.desired(
        topology, live, switches.installer.macs(view_of(topology)), PathPlan()
    )


def test_a_core_switch_that_never_came_is_not_used_unless_it_is_the_only_way() -> None:
    topology = paper()
    core = topology.core_switches[0]
    switches = Switches(topology)
    switches.installer.disconnected(core)
    switches.installer.lost.clear()
    result = switches.installer.apply(view_of(topology), PathPlan())
    assert result.refused == ()
    assert switches.held[core] == EMPTY
    assert switches.undelivered(topology) == []


def test_a_dead_edge_switch_is_not_waited_for() -> None:
    topology = paper()
    dead = topology.edge_switches[0]
    switches = Switches(topology)
    switches.installer.apply(view_of(topology), PathPlan())
    switches.installer.disconnected(dead)
    live = topology.without(switches={dead})
    result = switches.installer.apply(view_of(topology, live), separated(topology), frozenset({dead}))
    assert result.refused == ()


def uses(switches: Switches, core: str) -> bool:
    """Whether any pair of hosts talks through this switch."""
    network = SoftNetwork(switches.topology, switches.topology, switches.held)
    return any(
        core in network.send(src, Packet(eth_src=1, eth_dst=label_of(switches.topology, dst))).path
        for src, dst in itertools.permutations(switches.topology.host_by_name, 2)
    )
