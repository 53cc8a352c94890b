"""Reuse of a VLAN id by a new tree.

Arrives: rules and groups held, and rules and groups desired, by switch.
Leaves: an intermediate state in which no packet uses an id that will be reused, or None if no id is reused.
Must not know: topologies, plans, the order of changes.

A tree's id is a 12-bit hash of its content, so a new tree can get the id of a removed one: with 64 trees, with
probability 1/64 per new tree. The id must be out of use before it is reused. In the intermediate state, path indexes
of the new tree keep their tree, or use another one for some tens of milliseconds. If every tree collides, packets are
lost for that time: with one core switch, once in 4,093 failures.
"""

from __future__ import annotations

from waystage.interconnect import pipeline
from waystage.interconnect.cookies import content_of, stamped
from waystage.interconnect.rules import Bucket, Field, Group, PushVlan, Rule, Step, SwitchRules, ToGroup

Held = dict[str, SwitchRules]


def midway(held: Held, desired: Held) -> Held | None:
    """The intermediate state; None if no id is reused."""
    clashing = _clashing(held, desired)
    if not clashing:
        return None
    in_use: set[int] = set()
    found: Held = {}
    for switch, want in desired.items():
        found[switch] = _without(clashing, _Choices(held[switch]), _Choices(want))
        steps = [bucket.steps for group in found[switch].groups.values() for bucket in group.buckets]
        steps += [rule.steps for rule in found[switch].rules.values()]
        in_use |= {vid for some in steps for vid in _vids(some)}
    for switch, state in found.items():
        for key, rule in held[switch].rules.items():
            vid = _transit_vid(rule)
            if vid is not None and vid in in_use and vid not in clashing:
                state.rules.setdefault(key, rule)
    return found


def _clashing(held: Held, desired: Held) -> set[int]:
    """Ids for which a switch holds a rule of another tree than the new one."""
    # Most plans change groups alone, and leave every rule as it is.
    differing = {switch: want for switch, want in desired.items() if held[switch].rules is not want.rules}
    if not differing:
        return set()
    wanted = {vid for want in desired.values() for r in want.rules.values() if (vid := _transit_vid(r))}
    found: set[int] = set()
    for switch, want in differing.items():
        for key, rule in held[switch].rules.items():
            vid = _transit_vid(rule)
            if vid in wanted and vid is not None:
                new = want.rules.get(key)
                if new is None or content_of(new) != content_of(rule):
                    found.add(vid)
    return found


class _Choices:
    """What a switch's groups and exceptions do for each path index and edge switch."""

    def __init__(self, state: SwitchRules) -> None:
        self.state = state
        self.exceptions: dict[tuple[int, Field], Rule] = {}
        for rule in state.rules.values():
            if _is_exception(rule):
                self.exceptions[_slot_of(rule)] = rule

    @property
    def targets(self) -> set[Field]:
        """Edge switches, by label prefix, that some path index reaches by an exception."""
        return {target for _, target in self.exceptions}

    def steps(self, group_id: int, target: Field | None) -> tuple[Step, ...]:
        """The steps of a path index towards an edge switch; `target` None for those without an exception."""
        rule = self.exceptions.get((group_id, target)) if target is not None else None
        if rule is not None:
            return rule.steps
        group = self.state.groups.get(group_id)
        return group.buckets[0].steps if group is not None and group.buckets else ()


def _without(clashing: set[int], have: _Choices, want: _Choices) -> SwitchRules:
    """The intermediate rules of a switch: the desired ones, except transit rules and choices of a reused id."""
    # Primitives go with their class for that time; multicast trees are left out: a broadcast survives any loss.
    rules = {
        key: rule
        for key, rule in want.state.rules.items()
        if _transit_vid(rule) not in clashing
        and not _is_exception(rule)
        and not _of_primitive(rule)
        and not _multicast(rule)
    }
    groups: dict[int, Group] = {}
    for identity, group in want.state.groups.items():
        if identity >= pipeline.PRIMITIVE_BASE:  # MULTICAST_BASE is above it
            continue
        safe = not any(set(_vids(bucket.steps)) & clashing for bucket in group.buckets)
        default = _safe_steps(identity, None, clashing, have, want)
        groups[identity] = group if safe else Group(group_id=identity, buckets=(Bucket(steps=default),))
        usual = groups[identity].buckets[0].steps
        for target in have.targets | want.targets:
            steps = _safe_steps(identity, target, clashing, have, want)
            if steps != usual:
                path_index = Field(
                    "metadata", _metadata_of(identity), pipeline.PATH_MASK | pipeline.CLASS_MASK
                )
                rule = stamped(pipeline.UP, pipeline.PRIORITY_EXCEPTION, (path_index, target), steps)
                rules[rule.key] = rule
    return SwitchRules(rules=rules, groups=groups)


def _safe_steps(
    identity: int, target: Field | None, clashing: set[int], have: _Choices, want: _Choices
) -> tuple[Step, ...]:
    """The first of the desired way, the held one and another path index's that names no clashing id."""
    for group_id in (identity, *want.state.groups, *have.state.groups):
        if group_id >= pipeline.PRIMITIVE_BASE:
            continue
        for choices in (want, have):
            steps = choices.steps(group_id, target)
            if steps and not set(_vids(steps)) & clashing:
                code = identity >> 8 & 0xF
                return tuple(PushVlan(s.vid, code) if isinstance(s, PushVlan) else s for s in steps)
    return want.steps(identity, target)


def _is_exception(rule: Rule) -> bool:
    return rule.table == pipeline.UP and rule.priority == pipeline.PRIORITY_EXCEPTION


def _of_primitive(rule: Rule) -> bool:
    return rule.table == pipeline.UP and rule.priority >= pipeline.PRIORITY_PRIMITIVE


def _multicast(rule: Rule) -> bool:
    return any(isinstance(step, ToGroup) and step.group_id >= pipeline.MULTICAST_BASE for step in rule.steps)


def _slot_of(rule: Rule) -> tuple[int, Field]:
    """The group that an exception is one to, and the label prefix it is for."""
    metadata = next((field.value for field in rule.match if field.name == "metadata"), 0)
    target = next((field for field in rule.match if field.name == "eth_dst"), Field("eth_dst", 0))
    return pipeline.group_id(metadata & pipeline.CLASS_MASK, metadata >> 8), target


def _metadata_of(group_id: int) -> int:
    return (group_id & 0xFF) << 8 | group_id >> 8 & 0xF


def _vids(steps: tuple[Step, ...]) -> list[int]:
    return [step.vid for step in steps if isinstance(step, PushVlan)]


def _transit_vid(rule: Rule) -> int | None:
    if rule.table != pipeline.TRANSIT:
        return None
    return next((field.value for field in rule.match if field.name == "vlan_vid"), None)
