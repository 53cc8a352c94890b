"""Style `labelled`: rules by label, class and path index.

Arrives: the full topology, the same without what is down, true MAC addresses, a plan.
Leaves: the desired rules of each switch; the path of a pair.
Must not know: the rules in force, OpenFlow, policies.

The number of rules of a switch grows with its ports and with edge and core switches, not with pairs or jobs. Only the
groups, one per class and path index at each edge switch, and a few exceptions for damaged trees depend on the plan's
core switches; a switch-over changes only these.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

from waystage import spread
from waystage.events import CLASSES, PathPlan, TrafficClass
from waystage.interconnect import labels, multicast, pipeline, primitives, steering, tags
from waystage.interconnect.cookies import stamped
from waystage.interconnect.marks import Mark
from waystage.interconnect.path_choices import (
    choices_of,
    path_choices,
    primitive_choices,
    usable_cores,
    wanted_of,
)
from waystage.interconnect.rules import (
    Bucket,
    Field,
    Goto,
    Group,
    Output,
    PopVlan,
    PushVlan,
    Rule,
    SetEthDst,
    SwitchRules,
    ToController,
    ToGroup,
    WriteMetadata,
)
from waystage.interconnect.steering import Choices, PathChoice, Uplink
from waystage.interconnect.trees import Tree, forest
from waystage.topology import Topology

Spread = Literal["pair", "destination"]
RuleKey = tuple[int, int, tuple[Field, ...]]


def desired(
    topology: Topology,
    live: Topology,
    macs: dict[str, int],
    plan: PathPlan,
    marks: tuple[Mark, ...],
    failover: bool,
) -> dict[str, SwitchRules]:
    """The desired rules of every switch."""
    known = tuple(sorted(macs.items()))
    static = _static_rules(topology, live, known, plan.spread, plan.seed, marks)
    held: dict[str, SwitchRules] = {}
    trees = forest(topology, live).trees
    by_class = [
        _class_rules(topology, live, traffic, *wanted_of(topology, live, plan, traffic), failover)
        for traffic in CLASSES
    ]
    at_edge = steering.rules(topology, plan, choices_of(topology, live, plan, "mpi"))
    layout, of_primitives = tags.layout_of(topology), dict[str, SwitchRules]()
    if layout is not None and plan.primitives:
        mpi = pipeline.class_code("mpi")
        of_primitives = primitives.rules(
            trees,
            primitive_choices(topology, live, plan),
            {edge: layout.of_edge(topology, edge) for edge in topology.edge_switches},
            lambda identity, choice: _group(trees, identity, mpi, choice, failover),
        )
    copying = multicast.rules(topology, trees, plan.multicast)
    for switch in topology.switch_by_name:
        rules = static[switch]
        groups: dict[int, Group] = {}
        exceptions: dict[RuleKey, Rule] = {}
        for chosen in by_class:
            if switch in chosen:
                groups.update(chosen[switch].groups)
                exceptions.update(chosen[switch].rules)
        exceptions.update((rule.key, rule) for rule in at_edge.get(switch, ()))
        if switch in of_primitives:
            exceptions.update(of_primitives[switch].rules)
            groups.update(of_primitives[switch].groups)
        if switch in copying:
            exceptions.update(copying[switch].rules)
            groups.update(copying[switch].groups)
        held[switch] = SwitchRules(rules={**rules, **exceptions} if exceptions else rules, groups=groups)
    return held


class Paths:
    """The paths of one plan, prepared for many questions."""

    def __init__(self, topology: Topology, live: Topology, plan: PathPlan) -> None:
        self._topology, self._live, self._plan = topology, live, plan
        self._woods = forest(topology, live)
        self._choices: dict[TrafficClass, Choices] = {}
        self._between: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._steered: Mapping[tuple[str, str], int] = {}
        self._of_primitives: Mapping[str, Choices] | None = None

    def path(self, src: str, dst: str, traffic: TrafficClass, primitive: str = "") -> tuple[str, ...]:
        """Nodes from `src` to `dst`, or an empty tuple where no way is left; of a tagged packet by its primitive."""
        topology, live = self._topology, self._live
        ingress, egress = topology.attachment[src][0], topology.attachment[dst][0]
        if src == dst or src not in live.attachment or dst not in live.attachment:
            return ()
        if ingress == egress:
            return (src, ingress, dst)
        if traffic not in self._choices:
            self._choices[traffic] = choices_of(topology, live, self._plan, traffic)
            if traffic == "mpi" and self._plan.steered:
                self._steered = steering.path_indexes(topology, self._plan, self._choices[traffic])
        path_index = spread.path_index(topology, src, dst, spread=self._plan.spread, seed=self._plan.seed)
        if traffic == "mpi":
            path_index = self._steered.get((src, dst), path_index)
        choices = self._choices[traffic]
        if primitive and self._plan.primitives and tags.layout_of(topology) is not None:
            if self._of_primitives is None:
                self._of_primitives = primitive_choices(topology, live, self._plan)
            choices = self._of_primitives.get(primitive, choices)
        choice = choices.get(ingress, {}).get(path_index)
        if choice is None or self._woods.ways(ingress, egress) is None:
            return ()
        uplink = choice.exceptions.get(egress, choice.default)
        key = (uplink.root, ingress, egress)
        if key not in self._between:
            self._between[key] = self._woods.trees[uplink.root].path(ingress, egress)
        return (src, *self._between[key], dst)


@functools.lru_cache(maxsize=32)
def _class_rules(
    topology: Topology,
    live: Topology,
    traffic: TrafficClass,
    usable: tuple[str, ...],
    placed: tuple[tuple[str, tuple[str, ...]], ...],
    failover: bool,
) -> dict[str, SwitchRules]:
    """edge switch -> a class's groups and its exceptions; not to be changed. Switch-overs come back to earlier ones."""
    trees, code = forest(topology, live).trees, pipeline.class_code(traffic)
    found: dict[str, SwitchRules] = {}
    for switch, choices in path_choices(topology, live, usable, placed).items():
        groups: dict[int, Group] = {}
        exceptions: dict[RuleKey, Rule] = {}
        for path_index, choice in choices.items():
            group = _group(trees, pipeline.group_id(code, path_index), code, choice, failover)
            groups[group.group_id] = group
            for dst, uplink in choice.exceptions.items():
                for prefix in edge_fields(topology, dst):
                    rule = _exception(trees, traffic, path_index, prefix, uplink)
                    exceptions[rule.key] = rule
        found[switch] = SwitchRules(rules=exceptions, groups=groups)
    return found


def _group(trees: dict[str, Tree], identity: int, code: int, choice: PathChoice, failover: bool) -> Group:
    def bucket(uplink: Uplink, watch_port: int) -> Bucket:
        steps = (PushVlan(trees[uplink.root].vid, code), Output(uplink.port))
        return Bucket(steps=steps, watch_port=watch_port)

    if not failover or choice.backup is None:
        return Group(group_id=identity, buckets=(bucket(choice.default, 0),))
    ways = (choice.default, choice.backup)
    return Group(group_id=identity, kind="failover", buckets=tuple(bucket(way, way.port) for way in ways))


def edge_fields(topology: Topology, switch: str) -> tuple[Field, ...]:
    """Match every label, and every tag, whose destination is a host of this edge switch."""
    plain = Field("eth_dst", *labels.edge_prefix(topology, switch))
    layout = tags.layout_of(topology)
    return (plain,) if layout is None else (plain, layout.of_edge(topology, switch))


def _exception(
    trees: dict[str, Tree],
    traffic: TrafficClass,
    path_index: int,
    prefix: Field,
    uplink: Uplink,
) -> Rule:
    code = pipeline.class_code(traffic)
    return stamped(
        pipeline.UP,
        pipeline.PRIORITY_EXCEPTION,
        (_path_is(code, path_index), prefix),
        (PushVlan(trees[uplink.root].vid, code), Output(uplink.port)),
    )


def _path_is(code: int, path_index: int) -> Field:
    return Field("metadata", path_index << 8 | code, pipeline.PATH_MASK | pipeline.CLASS_MASK)


# -- what does not depend on the plan's core switches ------------------------------------------------


@functools.lru_cache(maxsize=8)
def _static_rules(
    topology: Topology,
    live: Topology,
    macs: tuple[tuple[str, int], ...],
    spread_by: Spread,
    seed: int,
    marks: tuple[Mark, ...],
) -> dict[str, dict[RuleKey, Rule]]:
    known = dict(macs)
    found: dict[str, list[Rule]] = {
        switch: _trunk_rules(topology, switch) for switch in topology.switch_by_name
    }
    choices = path_choices(topology, live, usable_cores(topology, live, PathPlan(), "mpi"))
    for edge in topology.edge_switches:
        found[edge] += control_rules()
        found[edge] += _host_port_rules(topology, edge)
        found[edge] += _classify_rules(topology, edge, marks)
        found[edge] += _arrival_rules(topology, edge)
        found[edge] += _local_rules(topology, edge, known)
        if choices.get(edge):
            found[edge] += _spread_rules(topology, edge, spread_by, seed)
            found[edge] += _up_rules(choices[edge])
    for switch in topology.switch_by_name:
        if switch not in topology.hosts_at:
            found[switch] += control_rules()
    prefixes = {edge: edge_fields(topology, edge) for edge in topology.edge_switches}
    for tree in forest(topology, live).trees.values():
        for switch, rules in _transit_rules(prefixes, tree).items():
            found[switch] += rules
    return {switch: {rule.key: rule for rule in rules} for switch, rules in found.items()}


def control_rules() -> list[Rule]:
    """LLDP and ARP go to the controller; nothing is flooded."""
    return [
        stamped(pipeline.PORTS, pipeline.PRIORITY_CONTROL, (Field("eth_type", kind),), (ToController(),))
        for kind in (pipeline.ETH_LLDP, pipeline.ETH_ARP)
    ]


def _trunk_rules(topology: Topology, switch: str) -> list[Rule]:
    """Tagged packets from another switch, counted by port and class."""
    is_edge = switch in topology.hosts_at
    rules: list[Rule] = []
    for link in topology.adjacency[switch]:
        if link.other(switch) not in topology.switch_by_name:
            continue
        port = link.port_at(switch)
        for traffic in CLASSES:
            code = pipeline.class_code(traffic)
            steps = (
                (pipeline.write_class(code), Goto(pipeline.ARRIVAL)) if is_edge else (Goto(pipeline.TRANSIT),)
            )
            match = (Field("in_port", port), pipeline.TAGGED, Field("vlan_pcp", code))
            rules.append(
                stamped(
                    pipeline.PORTS,
                    pipeline.PRIORITY_TRUNK,
                    match,
                    steps,
                    kind="rx",
                    traffic=traffic,
                    port=port,
                )
            )
    return rules


def _host_port_rules(topology: Topology, edge: str) -> list[Rule]:
    return [
        stamped(
            pipeline.PORTS,
            pipeline.PRIORITY_HOST_PORT,
            (Field("in_port", topology.attachment[host][1]), pipeline.UNTAGGED),
            (
                WriteMetadata(spread.row(topology, host) << 4, pipeline.ROW_MASK),
                Goto(pipeline.CLASSIFY),
            ),
        )
        for host in topology.hosts_at[edge]
    ]


def _classify_rules(topology: Topology, edge: str, marks: tuple[Mark, ...]) -> list[Rule]:
    """Tags and marks first, then storage at either end; the rest is MPI."""
    rules = mark_rules(pipeline.CLASSIFY, pipeline.LOCAL, marks)

    def ends(priority: int, match: tuple[Field, ...], traffic: TrafficClass) -> Rule:
        steps = (pipeline.write_class(pipeline.class_code(traffic)), Goto(pipeline.LOCAL))
        return stamped(pipeline.CLASSIFY, priority, match, steps)

    rules.append(ends(pipeline.PRIORITY_TAG, (tags.any_tag(),), "mpi"))
    storage = labels.PREFIX | labels.STORAGE_BIT
    to_storage = Field("eth_dst", storage, labels.PREFIX_MASK | labels.STORAGE_BIT)
    rules.append(ends(pipeline.PRIORITY_ENDPOINT, (to_storage,), "staging"))
    for host in topology.hosts_at[edge]:
        if topology.host_by_name[host].role == "storage":
            port = topology.attachment[host][1]
            rules.append(ends(pipeline.PRIORITY_ENDPOINT, (Field("in_port", port),), "staging"))
    rules.append(ends(pipeline.PRIORITY_DEFAULT, (), "mpi"))
    return rules


def mark_rules(table: int, next_table: int, marks: tuple[Mark, ...]) -> list[Rule]:
    """Marked packets get their class; the first of two marks for one header field wins."""
    rules: dict[RuleKey, Rule] = {}
    for mark in marks:
        priority = pipeline.PRIORITY_DSCP if mark.dscp is not None else pipeline.PRIORITY_TCP
        steps = (pipeline.write_class(pipeline.class_code(mark.traffic)), Goto(next_table))
        for match in mark.matches:
            rule = stamped(table, priority, match, steps)
            rules.setdefault(rule.key, rule)
    return list(rules.values())


def _arrival_rules(topology: Topology, edge: str) -> list[Rule]:
    # Switches take a pop only behind a match on the tag (OpenFlow 1.3, section 7.2.5).
    rules = [
        stamped(
            pipeline.ARRIVAL,
            pipeline.PRIORITY_EXACT,
            (mine, pipeline.TAGGED),
            (PopVlan(), Goto(pipeline.LOCAL)),
        )
        for mine in edge_fields(topology, edge)
    ]
    return [*rules, stamped(pipeline.ARRIVAL, pipeline.PRIORITY_DEFAULT, (), (Goto(pipeline.TRANSIT),))]


def _local_rules(topology: Topology, edge: str, macs: dict[str, int]) -> list[Rule]:
    """Delivery, counted by class, of labels and tags. Unused labels of this switch are dropped here."""
    layout = tags.layout_of(topology)
    rules = [
        stamped(pipeline.LOCAL, pipeline.PRIORITY_OWN_EDGE, (mine,), ())
        for mine in edge_fields(topology, edge)
    ]
    rules += [
        stamped(pipeline.LOCAL, pipeline.PRIORITY_DEFAULT, (anywhere,), (Goto(pipeline.SPREAD),))
        for anywhere in (Field("eth_dst", labels.PREFIX, labels.PREFIX_MASK), tags.any_tag())
    ]
    for host in topology.hosts_at[edge]:
        if host not in macs:
            continue
        port = topology.attachment[host][1]
        label = Field("eth_dst", labels.label_of(topology, host))
        addresses: list[tuple[TrafficClass, Field]] = [(traffic, label) for traffic in CLASSES]
        if layout is not None:
            addresses.append(("mpi", layout.of_host(topology, host)))
        for traffic, address in addresses:
            match = (address, pipeline.class_is(pipeline.class_code(traffic)))
            steps = (SetEthDst(macs[host]), Output(port))
            rules.append(
                stamped(
                    pipeline.LOCAL,
                    pipeline.PRIORITY_EXACT,
                    match,
                    steps,
                    kind="tx",
                    traffic=traffic,
                    port=port,
                )
            )
    return rules


def _spread_rules(topology: Topology, edge: str, spread_by: Spread, seed: int) -> list[Rule]:
    cores = len(topology.core_switches)
    rules: list[Rule] = []

    def spread_rule(host_key: int, key_mask: int, row: int | None, path_index: int) -> Rule:
        # A label and a tag have the host key at the same place.
        match = [Field("eth_dst", host_key, key_mask)]
        if row is not None:
            match.append(Field("metadata", row << 4, pipeline.ROW_MASK))
        steps = (WriteMetadata(path_index << 8, pipeline.PATH_MASK), Goto(pipeline.UP))
        return stamped(pipeline.SPREAD, pipeline.PRIORITY_EXACT, tuple(match), steps)

    if spread_by == "destination":
        host_keys = sorted({spread.host_key(topology, host.name) for host in topology.hosts})
        key_mask = spread.key_mask(cores)
        return [
            spread_rule(host_key, key_mask, None, host_key % spread.path_count(cores))
            for host_key in host_keys
        ]
    table = spread.pair_table(cores, seed)
    columns = sorted({spread.column(topology, host.name) for host in topology.hosts})
    mask = (
        spread.key_mask(cores)
        if spread.column_count(cores) == spread.host_key_count(cores)
        else spread.MAX_COLUMNS - 1
    )
    for row in sorted({spread.row(topology, host) for host in topology.hosts_at[edge]}):
        rules += [spread_rule(column, mask, row, table[row][column]) for column in columns]
    return rules


def _up_rules(choices: dict[int, PathChoice]) -> list[Rule]:
    return [
        stamped(
            pipeline.UP,
            pipeline.PRIORITY_PATH_GROUP,
            (_path_is(pipeline.class_code(traffic), path_index),),
            (ToGroup(pipeline.group_id(pipeline.class_code(traffic), path_index)),),
        )
        for traffic in CLASSES
        for path_index in choices
    ]


def _transit_rules(prefixes: dict[str, tuple[Field, ...]], tree: Tree) -> dict[str, list[Rule]]:
    """Down to the edge switches below, else up to the parent.

    The root has no such default, so an unknown label is dropped there. Every rule matches its tree's id.
    """
    vlan = Field("vlan_vid", tree.vid)
    found: dict[str, list[Rule]] = {}
    for switch, below in tree.down.items():
        rules = [
            stamped(pipeline.TRANSIT, pipeline.PRIORITY_EXACT, (vlan, prefix), (Output(port),))
            for edge, port in below.items()
            for prefix in prefixes[edge]
        ]
        if switch in tree.up and (below or switch not in prefixes):
            rules.append(
                stamped(pipeline.TRANSIT, pipeline.PRIORITY_UP, (vlan,), (Output(tree.up[switch][1]),))
            )
        found[switch] = rules
    return found
