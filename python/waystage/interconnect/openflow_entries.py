"""Flow entries and groups that a switch says it holds.

Arrives: the body of one part of a flow statistics or group description reply.
Leaves: `Rule` and `Group` values, or `MessageError`.
Must not know: os_ken, sockets, which switch it was.

Steps of a kind that Waystage never installs are left out: such a rule equals none that is wanted, so it is
replaced or deleted. Section numbers are those of OpenFlow 1.3.5; 1.4 has the same layouts.
"""

from __future__ import annotations

import struct
from typing import Literal

from waystage.interconnect.openflow_errors import MessageError
from waystage.interconnect.openflow_match import (
    MATCH_HEADER,
    VID_PRESENT,
    decode_fields,
    match_end,
    oxm,
)
from waystage.interconnect.rules import (
    Bucket,
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

MAX_LIST = 1024
"""Actions in one list at 8 bytes each, or buckets of one group: hardware takes tens."""

MAX_PER_PART = 1638
"""Groups in one part of a reply: one with a bucket that outputs has 40 bytes, and a part at most 65,519."""

_FLOW = struct.Struct("!HBx8xH10xQ16x")  # length, table, priority, cookie (A.3.5.2)
_GROUP = struct.Struct("!HBxI")  # A.3.5.10
_BUCKET = struct.Struct("!H2xI8x")  # length, watched port (A.3.4.2)
_TYPE_LENGTH = struct.Struct("!HH")
_ACTION = struct.Struct("!HHI")  # type, length, and what most have next: a port or a group
_METADATA = struct.Struct("!8xQQ")
_GOTO, _WRITE_METADATA, _APPLY_ACTIONS, _EXPERIMENTER = 1, 2, 4, 0xFFFF  # OFPIT
_OUTPUT, _PUSH_VLAN, _POP_VLAN, _TO_GROUP, _SET_FIELD = 0, 17, 18, 22, 25  # OFPAT
_CONTROLLER, _ANY = 0xFFFFFFFD, 0xFFFFFFFF  # OFPP
_SET_ETH_DST, _SET_VID, _SET_PCP = 0x80000606, 0x80000C02, 0x80000E01  # headers of match fields
_LENGTHS = {_OUTPUT: 16, _PUSH_VLAN: 8, _POP_VLAN: 8, _TO_GROUP: 8}
_PUSHED, _POPPED, _TO_CONTROLLER = PushVlan(vid=0, pcp=0), PopVlan(), ToController()
_ALL, _INDIRECT, _FAILOVER = 0, 2, 3  # OFPGT
_KINDS: dict[int, Literal["indirect", "failover", "all"]] = {
    _ALL: "all",
    _INDIRECT: "indirect",
    _FAILOVER: "failover",
}


def rules(body: bytes, ours: tuple[int, int] = (0, 0)) -> list[Rule]:
    """One part of a flow statistics reply. Entries whose masked cookie is not `ours` are skipped."""
    found: list[Rule] = []
    wanted, mask = ours
    at, size = 0, len(body)
    while at < size:
        if at + _FLOW.size > size:
            raise MessageError("a flow entry is cut short")
        length, table, priority, cookie = _FLOW.unpack_from(body, at)
        end = at + length
        if length < _FLOW.size + 8 or end > size:
            raise MessageError(f"a flow entry says it has {length} bytes")
        if cookie & mask == wanted:
            found.append(_rule(body, at + _FLOW.size, end, table, priority, cookie))
        at = end
    return found


def groups(body: bytes) -> list[Group]:
    """One part of a group description reply; a kind Waystage never installs reads as an empty group."""
    found: list[Group] = []
    at, size = 0, len(body)
    while at < size:
        if at + _GROUP.size > size:
            raise MessageError("a group is cut short")
        length, kind, group_id = _GROUP.unpack_from(body, at)
        end = at + length
        if length < _GROUP.size or end > size or len(found) == MAX_PER_PART:
            raise MessageError(f"group {group_id} says it has {length} bytes, after {len(found)} others")
        known = _KINDS.get(kind)
        if known is None:
            found.append(Group(group_id=group_id))
        else:
            buckets = _buckets(body, at + _GROUP.size, end)
            found.append(Group(group_id=group_id, kind=known, buckets=buckets))
        at = end
    return found


def _rule(data: bytes, at: int, end: int, table: int, priority: int, cookie: int) -> Rule:
    fields_end, after = match_end(data, at, end)
    match = decode_fields(data, at + MATCH_HEADER.size, fields_end)
    return Rule(
        table=table, priority=priority, match=match, steps=_instructions(data, after, end), cookie=cookie
    )


def _instructions(data: bytes, at: int, end: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    seen: set[int] = set()
    while at < end:
        kind, length, after = _sized(data, at, end, "an instruction")
        if kind in seen and kind != _EXPERIMENTER:  # each type at most once (5.9)
            raise MessageError(f"a flow entry has two instructions of type {kind}")
        seen.add(kind)
        if kind == _APPLY_ACTIONS:
            steps += _actions(data, at + 8, after)
        elif kind == _WRITE_METADATA:
            if length != 24:
                raise MessageError(f"a write-metadata instruction has {length} bytes, not 24")
            steps.append(WriteMetadata(*_METADATA.unpack_from(data, at)))
        elif kind == _GOTO:
            if length != 8:
                raise MessageError(f"a goto instruction has {length} bytes, not 8")
            steps.append(Goto(data[at + 4]))
        at = after
    return tuple(steps)


def _buckets(data: bytes, at: int, end: int) -> tuple[Bucket, ...]:
    found: list[Bucket] = []
    while at < end:
        if at + _BUCKET.size > end:
            raise MessageError("a bucket is cut short")
        length, port = _BUCKET.unpack_from(data, at)
        after = at + length
        if length < _BUCKET.size or length & 7 or after > end or len(found) == MAX_LIST:
            raise MessageError(f"a bucket says it has {length} bytes, after {len(found)} others")
        steps = tuple(_actions(data, at + _BUCKET.size, after))
        found.append(Bucket(steps=steps, watch_port=0 if port == _ANY else port))
        at = after
    return tuple(found)


def _actions(data: bytes, at: int, end: int) -> list[Step]:
    steps: list[Step] = []
    last = end - 8
    if end - at > MAX_LIST * 8:
        raise MessageError(f"a list of actions has {end - at} bytes")
    while at < end:
        # As `_sized`, written out: a message may hold thousands of actions.
        if at > last:
            raise MessageError("an action is cut short")
        kind, length, value = _ACTION.unpack_from(data, at)
        after = at + length
        if length < 8 or length & 7 or after > end:
            raise MessageError(f"an action of type {kind} says it has {length} bytes")
        if kind == _SET_FIELD:
            _set_field(data, at + 4, after, steps)
        elif kind in _LENGTHS:
            if length != _LENGTHS[kind]:
                raise MessageError(f"an action of type {kind} has {length} bytes, not {_LENGTHS[kind]}")
            if kind == _OUTPUT:
                steps.append(_TO_CONTROLLER if value == _CONTROLLER else Output(value))
            elif kind == _TO_GROUP:
                steps.append(ToGroup(value))
            else:
                steps.append(_PUSHED if kind == _PUSH_VLAN else _POPPED)
        at = after
    return steps


def _set_field(data: bytes, at: int, end: int, steps: list[Step]) -> None:
    """One field is set; a tag's id and priority belong to the push before them."""
    header, at, after = oxm(data, at, end)
    if header not in (_SET_ETH_DST, _SET_VID, _SET_PCP):
        return
    value = int.from_bytes(data[at:after], "big")
    if header == _SET_ETH_DST:
        steps.append(SetEthDst(value))
    elif steps and isinstance(tag := steps[-1], PushVlan):
        if header == _SET_VID:
            steps[-1] = PushVlan(vid=value & ~VID_PRESENT, pcp=tag.pcp)
        elif header == _SET_PCP:
            steps[-1] = PushVlan(vid=tag.vid, pcp=value)


def _sized(data: bytes, at: int, end: int, what: str) -> tuple[int, int, int]:
    """Type and length of an action or instruction, and where it ends: 8 bytes or more, and a multiple (A.2.4)."""
    if at + 8 > end:
        raise MessageError(f"{what} is cut short")
    kind, length = _TYPE_LENGTH.unpack_from(data, at)
    after = at + length
    if length < 8 or length & 7 or after > end:
        raise MessageError(f"{what} of type {kind} says it has {length} bytes")
    return kind, length, after
