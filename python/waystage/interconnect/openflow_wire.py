"""Rules, groups and requests to OpenFlow messages; counters back.

Arrives: `Change`, `Rule` and `Group` values; parts of statistics replies.
Leaves: encoded messages with transaction id 0; counters.
Must not know: sockets, threads, which switch is meant, what a rule is for.

os-ken encodes what goes out. It reads nothing that a switch has sent: its parsers trust every length.

os-ken serialises about eleven thousand flow-mods a second, and a switch-over sends the same few
messages again and again. So encoded changes are kept, and a message only gets its transaction id
patched in when it leaves.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import msgspec
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_4
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.openflow_match import VID_PRESENT, foreign_bytes
from waystage.interconnect.openflow_messages import HEADER
from waystage.interconnect.rules import (
    Change,
    Field,
    Goto,
    Group,
    Output,
    PopVlan,
    PushVlan,
    Rule,
    SetEthDst,
    Step,
    ToController,
    ToGroup,
    WriteMetadata,
)

ENCODED_KEPT = 65536
"""Encoded changes kept: about 20 MB at most, and more than any fabric of this size repoints."""

_FLOW_MOD_SIZE = 48  # before the match (1.3, section A.3.4.1)
_VLAN_TPID = 0x8100
_ADDRESSES = frozenset({"eth_src", "eth_dst"})
_ONF = 0x4F4E4600  # the Open Networking Foundation's experimenter id
_ONF_CONTROL, _ONF_ADD = 2300, 2301
_ATOMIC_ORDERED = 0b11

BUNDLE_OPEN, BUNDLE_CLOSE, BUNDLE_COMMIT, BUNDLE_DISCARD = 0, 2, 4, 6


@functools.lru_cache(maxsize=4)
def protocol(version: int) -> Any:
    """What os-ken's message classes want to know of a connection: the version's constants and classes."""
    return ProtocolDesc(version)


def with_xid(message: bytes, xid: int) -> bytes:
    """The encoded `message` under another transaction id."""
    return message[:4] + xid.to_bytes(4, "big") + message[8:]


def encode(message: Any) -> bytes:
    """An os-ken message as bytes, transaction id 0 unless it has one."""
    message.serialize()
    return bytes(message.buf)


@functools.lru_cache(maxsize=ENCODED_KEPT)
def encode_change(version: int, change: Change) -> bytes:
    """One flow-mod or group-mod, transaction id 0.

    A changed rule is sent as an addition: OpenFlow's modify leaves the cookie as it was, and an
    addition replaces the entry of the same match and priority in one step, counters kept.
    """
    desc = protocol(version)
    item = change.item
    if isinstance(item, Group):
        return encode(_group_mod(desc, change.op, item))
    foreign = foreign_bytes(item.match)
    if foreign is None:
        return encode(_flow_mod(desc, change.op, item))
    # A rule of fields that Waystage never uses is only ever deleted: its match goes back as it came.
    fixed = encode(_flow_mod(desc, "delete", msgspec.structs.replace(item, match=())))[:_FLOW_MOD_SIZE]
    return fixed[:2] + (len(fixed) + len(foreign)).to_bytes(2, "big") + fixed[4:] + foreign


def error_text(version: int, kind: int, code: int) -> str:
    """The names that the standard has for the type and code of an error message."""
    ofp = protocol(version).ofproto
    if kind == ofp.OFPET_EXPERIMENTER:
        return f"experimenter error {code}"
    return f"{ofp.ofp_error_type_to_str(kind)}: {ofp.ofp_error_code_to_str(kind, code)}"


def held_requests(version: int, cookie: int, mask: int) -> tuple[bytes, bytes]:
    """Ask for the flow entries of this masked cookie, and for every group."""
    desc = protocol(version)
    return flow_counts_request(version, cookie, mask), encode(
        desc.ofproto_parser.OFPGroupDescStatsRequest(desc)
    )


def port_desc_request(version: int) -> bytes:
    desc = protocol(version)
    return encode(desc.ofproto_parser.OFPPortDescStatsRequest(desc))


def barrier(version: int) -> bytes:
    return encode(protocol(version).ofproto_parser.OFPBarrierRequest(protocol(version)))


@functools.lru_cache(maxsize=4096)
def packet_out(version: int, port: int, data: bytes) -> bytes:
    """Send `data` out of `port`. Kept, because discovery sends the same frames for ever."""
    desc = protocol(version)
    ofp, parser = desc.ofproto, desc.ofproto_parser
    return encode(
        parser.OFPPacketOut(
            desc,
            buffer_id=ofp.OFP_NO_BUFFER,
            in_port=ofp.OFPP_CONTROLLER,
            actions=[parser.OFPActionOutput(port)],
            data=data,
        )
    )


def bundle_control(version: int, bundle_id: int, kind: int) -> bytes:
    """OpenFlow 1.4 section 7.3.9; on 1.3 the same fields in the ONF extension 230."""
    body = struct.pack("!IHH", bundle_id, kind, _ATOMIC_ORDERED)
    if version >= ofproto_v1_4.OFP_VERSION:
        return HEADER.pack(version, ofproto_v1_4.OFPT_BUNDLE_CONTROL, 8 + len(body), 0) + body
    body = struct.pack("!II", _ONF, _ONF_CONTROL) + body
    return HEADER.pack(version, ofproto_v1_3.OFPT_EXPERIMENTER, 8 + len(body), 0) + body


def bundle_add(version: int, bundle_id: int, message: bytes) -> bytes:
    """`message`, which has its transaction id already, wrapped with the same one as the standard asks."""
    xid = int.from_bytes(message[4:8], "big")
    body = struct.pack("!I2xH", bundle_id, _ATOMIC_ORDERED) + message
    if version >= ofproto_v1_4.OFP_VERSION:
        return HEADER.pack(version, ofproto_v1_4.OFPT_BUNDLE_ADD_MESSAGE, 8 + len(body), xid) + body
    body = struct.pack("!II", _ONF, _ONF_ADD) + body
    return HEADER.pack(version, ofproto_v1_3.OFPT_EXPERIMENTER, 8 + len(body), xid) + body


class FlowCount(msgspec.Struct, frozen=True, gc=False):
    """What one flow entry has counted since it was installed; `cookie` says what for.

    `key` is the same for the same entry (table, priority, match) in every reply, and has no other meaning.
    """

    key: bytes
    cookie: int
    packets: int
    bytes: int


class PortCount(msgspec.Struct, frozen=True, gc=False):
    """What one port has counted since the switch started."""

    port: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int


def flow_counts_request(version: int, cookie: int, mask: int) -> bytes:
    desc = protocol(version)
    return encode(desc.ofproto_parser.OFPFlowStatsRequest(desc, cookie=cookie, cookie_mask=mask))


def port_counts_request(version: int) -> bytes:
    desc = protocol(version)
    return encode(desc.ofproto_parser.OFPPortStatsRequest(desc, 0, desc.ofproto.OFPP_ANY))


# length, table, priority, cookie, packets, bytes, type and length of the match: 1.3, section A.3.5.2
_FLOW_STATS = struct.Struct("!HBx8xH10xQQQ2xH")
_MATCH_AT = 48
_PORT_STATS_13 = struct.Struct("!I4x6Q")  # 1.3, section A.3.5.6: fixed size
_PORT_STATS_14 = struct.Struct("!H2xI8x6Q")  # 1.4, section 7.3.5.6: length first
_PORT_STATS_13_SIZE = 112


def flow_counts(body: bytes) -> list[FlowCount]:
    """The entries of one part of a flow statistics reply, read without their matches and instructions.

    Polled every second on every switch, so the few numbers wanted are taken where they stand.
    Raises MessageError where the lengths make no sense.
    """
    found: list[FlowCount] = []
    at, size = 0, len(body)
    while at < size:
        length, table, priority, cookie, packets, octets, match_length = _unpack(_FLOW_STATS, body, at)
        if length < _FLOW_STATS.size or at + length > size or _MATCH_AT + match_length > length:
            raise MessageError(f"a flow entry says it has {length} bytes, {match_length} of them its match")
        match = body[at + _MATCH_AT : at + _MATCH_AT + match_length]
        key = bytes((table, priority >> 8, priority & 0xFF)) + match
        found.append(FlowCount(key, cookie, packets, octets))
        at += length
    return found


def port_counts(version: int, body: bytes) -> list[PortCount]:
    """The entries of one part of a port statistics reply. Raises MessageError as `flow_counts`."""
    found: list[PortCount] = []
    at, size = 0, len(body)
    while at < size:
        if version >= ofproto_v1_4.OFP_VERSION:
            length, port, *_ = counts = _unpack(_PORT_STATS_14, body, at)
            counts = counts[2:]
        else:
            counts = _unpack(_PORT_STATS_13, body, at)
            length, port, counts = _PORT_STATS_13_SIZE, counts[0], counts[1:]
        if length < _PORT_STATS_13.size or at + length > size:
            raise MessageError(f"the counters of a port say they have {length} bytes")
        found.append(PortCount(port, *counts))
        at += length
    return found


def _unpack(layout: struct.Struct, body: bytes, at: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(body, at)
    except struct.error as error:
        raise MessageError(f"statistics are cut short: {error}") from None


def _flow_mod(desc: Any, op: str, rule: Rule) -> Any:
    ofp, parser = desc.ofproto, desc.ofproto_parser
    deleting = op == "delete"
    return parser.OFPFlowMod(
        desc,
        cookie=rule.cookie,
        table_id=rule.table,
        command=ofp.OFPFC_DELETE_STRICT if deleting else ofp.OFPFC_ADD,
        priority=rule.priority,
        out_port=ofp.OFPP_ANY,
        out_group=ofp.OFPG_ANY,
        match=_match(parser, rule.match),
        instructions=[] if deleting else _instructions(ofp, parser, rule.steps),
    )


def _group_mod(desc: Any, op: str, group: Group) -> Any:
    ofp, parser = desc.ofproto, desc.ofproto_parser
    commands = {"add": ofp.OFPGC_ADD, "modify": ofp.OFPGC_MODIFY, "delete": ofp.OFPGC_DELETE}
    kinds = {"failover": ofp.OFPGT_FF, "all": ofp.OFPGT_ALL, "indirect": ofp.OFPGT_INDIRECT}
    buckets = [
        parser.OFPBucket(
            watch_port=bucket.watch_port or ofp.OFPP_ANY,
            watch_group=ofp.OFPG_ANY,
            actions=_actions(ofp, parser, bucket.steps),
        )
        for bucket in group.buckets
    ]
    return parser.OFPGroupMod(
        desc, commands[op], kinds[group.kind], group.group_id, [] if op == "delete" else buckets
    )


def _match(parser: Any, fields: tuple[Field, ...]) -> Any:
    wanted: dict[str, Any] = {}
    for field in fields:
        value: Any = field.value
        mask: Any = field.mask
        if field.name == "vlan_vid":
            value, mask = _vid_match(field.value)
        elif field.name in _ADDRESSES:
            value = _address_text(field.value)
            mask = None if field.mask is None else _address_text(field.mask)
        wanted[field.name] = value if mask is None else (value, mask)
    return parser.OFPMatch(**wanted)


def _vid_match(vid: int) -> tuple[int, int | None]:
    if vid == -1:
        return VID_PRESENT, VID_PRESENT
    return (vid | VID_PRESENT if vid else 0), None


def _instructions(ofp: Any, parser: Any, steps: tuple[Step, ...]) -> list[Any]:
    made: list[Any] = []
    actions = _actions(ofp, parser, steps)
    if actions:
        made.append(parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions))
    made += [
        parser.OFPInstructionWriteMetadata(s.value, s.mask) for s in steps if isinstance(s, WriteMetadata)
    ]
    made += [parser.OFPInstructionGotoTable(s.table) for s in steps if isinstance(s, Goto)]
    return made


def _actions(ofp: Any, parser: Any, steps: tuple[Step, ...]) -> list[Any]:
    made: list[Any] = []
    for step in steps:
        match step:
            case Output(port=port):
                made.append(parser.OFPActionOutput(port))
            case ToController():
                made.append(parser.OFPActionOutput(ofp.OFPP_CONTROLLER, ofp.OFPCML_NO_BUFFER))
            case SetEthDst(mac=mac):
                made.append(parser.OFPActionSetField(eth_dst=_address_text(mac)))
            case PushVlan(vid=vid, pcp=pcp):
                made.append(parser.OFPActionPushVlan(_VLAN_TPID))
                made.append(parser.OFPActionSetField(vlan_vid=vid | VID_PRESENT))
                made.append(parser.OFPActionSetField(vlan_pcp=pcp))
            case PopVlan():
                made.append(parser.OFPActionPopVlan())
            case ToGroup(group_id=group_id):
                made.append(parser.OFPActionGroup(group_id))
            case WriteMetadata() | Goto():
                pass  # instructions, not actions
    return made


def _address_text(address: int) -> str:
    return address.to_bytes(6, "big").hex(":")
