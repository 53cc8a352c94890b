"""Flow rules and groups as data, independent of any OpenFlow library.

Arrives: nothing; these are the words in which planner, software flow table and OpenFlow app speak.
Leaves: `Rule`, `Group`, `SwitchRules`, and the difference between two `SwitchRules`.
Must not know: os_ken, sockets, policies.

A rule is identified on its switch by (table, priority, match), a group by its id: what OpenFlow 1.3
calls an overlap is the same identity here. Everything compares by value, so that what was read back
from a switch can be held against what is wanted. None of these values can refer to itself, so none is known to the
garbage collector: a switch that describes thousands of rules starts no search of the whole process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MatchField = Literal[
    "in_port",
    "eth_type",
    "eth_src",
    "eth_dst",
    "vlan_vid",  # 0 = untagged; 1..4095 = that VLAN; -1 = any tag present
    "vlan_pcp",
    "ip_proto",
    "ip_dscp",
    "tcp_src",
    "tcp_dst",
    "udp_src",
    "udp_dst",
    "metadata",
]


class Field(msgspec.Struct, frozen=True, gc=False, order=True):
    """One match field; addresses are integers (48 bit); `mask` None means exact."""

    name: MatchField
    value: int
    mask: int | None = None


class Output(msgspec.Struct, frozen=True, gc=False, tag="output"):
    port: int


class ToController(msgspec.Struct, frozen=True, gc=False, tag="controller"):
    pass


class SetEthDst(msgspec.Struct, frozen=True, gc=False, tag="set_eth_dst"):
    mac: int


class PushVlan(msgspec.Struct, frozen=True, gc=False, tag="push_vlan"):
    """Push an 802.1Q tag with this id and priority."""

    vid: int
    pcp: int


class PopVlan(msgspec.Struct, frozen=True, gc=False, tag="pop_vlan"):
    pass


class ToGroup(msgspec.Struct, frozen=True, gc=False, tag="group"):
    group_id: int


class WriteMetadata(msgspec.Struct, frozen=True, gc=False, tag="metadata"):
    value: int
    mask: int


class Goto(msgspec.Struct, frozen=True, gc=False, tag="goto"):
    table: int


Step = Output | ToController | SetEthDst | PushVlan | PopVlan | ToGroup | WriteMetadata | Goto


class Rule(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A flow entry. `match` is sorted by field name. `steps` are carried out in order; an empty list drops.

    Packet-changing and output steps become one apply-actions instruction, then write-metadata, then goto.
    `cookie` says what the rule accounts for (see `cookies.py`); 0 for nothing.
    """

    table: int
    priority: int
    match: tuple[Field, ...] = ()
    steps: tuple[Step, ...] = ()
    cookie: int = 0

    @property
    def key(self) -> tuple[int, int, tuple[Field, ...]]:
        return (self.table, self.priority, self.match)


class Bucket(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`watch_port` 0 means always live (indirect groups); fast-failover buckets name the port they need."""

    steps: tuple[Step, ...]
    watch_port: int = 0


class Group(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`indirect`: one bucket. `failover`: the first bucket whose watch_port is up. `all`: a copy for each bucket."""

    group_id: int
    kind: Literal["indirect", "failover", "all"] = "indirect"
    buckets: tuple[Bucket, ...] = ()


class SwitchRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one switch holds, or shall hold."""

    rules: dict[tuple[int, int, tuple[Field, ...]], Rule] = {}
    groups: dict[int, Group] = {}

    @classmethod
    def of(cls, rules: list[Rule], groups: list[Group]) -> SwitchRules:
        """Raises ValueError where two rules or groups share an identity but differ."""
        by_key: dict[tuple[int, int, tuple[Field, ...]], Rule] = {}
        for rule in rules:
            if by_key.setdefault(rule.key, rule) != rule:
                raise ValueError(f"two rules with one identity: {by_key[rule.key]} and {rule}")
        by_id: dict[int, Group] = {}
        for group in groups:
            if by_id.setdefault(group.group_id, group) != group:
                raise ValueError(f"two groups with id {group.group_id}")
        return cls(rules=by_key, groups=by_id)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One flow-mod or group-mod."""

    op: Literal["add", "modify", "delete"]
    item: Rule | Group


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Changes by switch that may go out together; the next phase waits for every barrier of this one."""

    name: str
    changes: dict[str, tuple[Change, ...]] = {}

    @property
    def messages(self) -> int:
        return sum(len(c) for c in self.changes.values())
