"""Rules to messages and back without a switch; statistics from any bytes."""

from __future__ import annotations

import struct
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.interconnect import openflow_entries, openflow_messages
from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.rules import (
    Bucket,
    Change,
    Field,
    Goto,
    Group,
    MatchField,
    Output,
    PopVlan,
    PushVlan,
    Rule,
    SetEthDst,
    ToController,
    ToGroup,
    WriteMetadata,
)

PORTS = st.integers(1, 0xFEFF)
MACS = st.integers(0, 2**48 - 1)
BITS: dict[str, int] = {
    "in_port": 16,
    "eth_type": 16,
    "eth_src": 48,
    "eth_dst": 48,
    "vlan_vid": 12,
    "vlan_pcp": 3,
    "ip_proto": 8,
    "ip_dscp": 6,
    "tcp_src": 16,
    "tcp_dst": 16,
    "udp_src": 16,
    "udp_dst": 16,
    "metadata": 64,
}
MASKED = {"eth_src", "eth_dst", "metadata"}


@st.composite
def fields(draw: st.DrawFn, name: MatchField) -> Field:
    if name == "vlan_vid" and draw(st.booleans()):
        return Field(name, -1)
    limit = 2 ** BITS[name] - 1
    value = draw(st.integers(0, limit))
    if name not in MASKED or draw(st.booleans()):
        return Field(name, value)
    # A mask of all ones is no mask, and values outside the mask are not kept.
    mask = draw(st.integers(1, limit - 1))
    return Field(name, value & mask, mask)


MATCHES = st.sets(st.sampled_from(get_args(MatchField))).flatmap(
    lambda names: st.tuples(*(fields(name) for name in sorted(names)))
)
ACTIONS = st.one_of(
    st.builds(Output, PORTS),
    st.just(ToController()),
    st.builds(SetEthDst, MACS),
    st.builds(PushVlan, st.integers(1, 4094), st.integers(0, 7)),
    st.just(PopVlan()),
    st.builds(ToGroup, st.integers(0, 0xFFFFFF00)),
)
METADATA = st.builds(WriteMetadata, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    steps: list[Any] = draw(st.lists(ACTIONS, max_size=4))
    steps += draw(st.lists(METADATA, max_size=1))
    steps += draw(st.lists(st.builds(Goto, st.integers(1, 254)), max_size=1))
    return Rule(
        table=draw(st.integers(0, 8)),
        priority=draw(st.integers(0, 65535)),
        match=draw(MATCHES),
        steps=tuple(steps),
        cookie=draw(st.integers(0, 2**64 - 1)),
    )


def flow_entry(rule: Rule, rest: bytes) -> bytes:
    """As a switch describes it: what follows in the flow-mod, the match first, is the same (1.3, A.3.4.1, A.3.5.2)."""
    fixed = struct.pack("!HBx8xH10xQ16x", 48 + len(rest), rule.table, rule.priority, rule.cookie)
    return fixed + rest


@pytest.mark.parametrize("version", openflow_messages.VERSIONS)
@given(rule=rules())
def test_a_rule_survives_the_wire(version: int, rule: Rule) -> None:
    sent = wire.encode_change(version, Change(op="add", item=rule))
    assert struct.unpack("!BBHI", sent[:8]) == (version, 14, len(sent), 0)
    entry = flow_entry(rule, sent[48:])
    assert openflow_entries.rules(entry * 2) == [rule, rule]
    assert openflow_entries.rules(entry, (rule.cookie ^ 1, 1)) == [], "another cookie is not ours"


@pytest.mark.parametrize("version", openflow_messages.VERSIONS)
@given(steps=st.lists(ACTIONS, min_size=1, max_size=3), identity=st.integers(0, 0xFFFFFF00), watch=PORTS)
def test_a_group_survives_the_wire(version: int, steps: list[Any], identity: int, watch: int) -> None:
    bucket = Bucket(steps=tuple(steps), watch_port=watch)
    for group in (
        Group(group_id=identity, buckets=(Bucket(steps=tuple(steps)),)),
        Group(group_id=identity, kind="failover", buckets=(bucket, bucket)),
    ):
        sent = wire.encode_change(version, Change(op="modify", item=group))
        # A switch describes a group by its type, id and the same buckets (OpenFlow 1.3, section A.3.5.10).
        described = struct.pack("!HBxI", len(sent) - 8, sent[10], identity) + sent[16:]
        assert openflow_entries.groups(described * 2) == [group, group]


@pytest.mark.parametrize("version", openflow_messages.VERSIONS)
def test_a_rule_of_fields_that_are_never_used_is_deleted_as_it_was_read(version: int) -> None:
    parser = wire.protocol(version).ofproto_parser
    match = parser.OFPMatch(eth_type=0x0800, ipv4_src=("10.0.0.0", "255.0.0.0"), in_port=3)
    desc = wire.protocol(version)
    added = wire.encode(parser.OFPFlowMod(desc, priority=7, match=match, cookie=0x57 << 56))
    (read,) = openflow_entries.rules(flow_entry(Rule(table=0, priority=7, cookie=0x57 << 56), added[48:]))
    deleted = wire.encode_change(version, Change(op="delete", item=read))
    back = parser.OFPFlowMod.parser(None, version, 14, len(deleted), 0, deleted)
    assert back.command == desc.ofproto.OFPFC_DELETE_STRICT
    assert dict(back.match.items()) == dict(match.items())


def test_a_transaction_id_changes_nothing_else_and_bundles_wrap_it() -> None:
    change = Change(op="delete", item=Rule(table=1, priority=2, match=(Field("in_port", 3),)))
    for version in openflow_messages.VERSIONS:
        message = wire.with_xid(wire.encode_change(version, change), 77)
        assert message[4:8] == (77).to_bytes(4, "big")
        wrapped = wire.bundle_add(version, 9, message)
        assert wrapped.endswith(message)
        assert wrapped[4:8] == message[4:8], "the standard asks for one transaction id"
        assert int.from_bytes(wrapped[2:4], "big") == len(wrapped)


def test_statistics_are_taken_from_where_they_stand() -> None:
    parser = wire.protocol(4).ofproto_parser
    match = bytes.fromhex("0001000c800000040000000300000000")
    entries = b"".join(
        struct.pack("!HBxIIHHHH4xQQQ", 64, table, 1, 2, 100, 0, 0, 0, cookie, packets, octets) + match
        for table, cookie, packets, octets in ((0, 0x57 << 56, 5, 600), (2, 8, 0, 0))
    )
    found = wire.flow_counts(entries)
    assert [(c.cookie, c.packets, c.bytes) for c in found] == [(0x57 << 56, 5, 600), (8, 0, 0)]
    assert found[0].key != found[1].key
    by_os_ken = parser.OFPFlowStats.parser(entries, 0)
    assert (by_os_ken.cookie, by_os_ken.packet_count, by_os_ken.byte_count) == (0x57 << 56, 5, 600)


@given(st.binary(max_size=300))
def test_statistics_cut_short_or_senseless_raise_one_kind_of_error(data: bytes) -> None:
    for read in (wire.flow_counts, lambda d: wire.port_counts(4, d), lambda d: wire.port_counts(5, d)):
        try:
            read(data)  # type: ignore[operator]
        except ValueError:
            pass
