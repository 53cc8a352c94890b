"""Two trees that want one VLAN id, one after the other.

Arrives: rules and groups held, and rules and groups desired, by switch.
Leaves: a state midway in which no packet uses an id that is about to change its meaning, or None where none is.
Must not know: topologies, plans, how changes are put in order.

A tree's id is a 12-bit hash of its content, so a new tree may get the id of one that goes. With 64 trees that is a
chance of 1 in 64 a new tree. The id must then be out of use before it is used again: midway, what shall
use the new tree stays where it is, or borrows another tree for some tens of milliseconds.
"""

from __future__ import annotations

from waystage.interconnect import pipeline
from waystage.interconnect.cookies import content_of
from waystage.interconnect.rules import Bucket, Field, Group, PushVlan, Rule, Step, SwitchRules

Held = dict[str, SwitchRules]


def midway(held: Held, desired: Held) -> Held | None:
    """The state to pass through, or None where no id changes its meaning."""
    clashing = _clashing(held, desired)
    if not clashing:
        return None
    in_use: set[int] = set()
    found: Held = {}
    for switch, want in desired.items():
        have = held[switch]
        groups = {i: _safe_group(g, have, want, clashing) for i, g in want.groups.items()}
        rules: dict[tuple[int, int, tuple[Field, ...]], Rule] = {}
        for key, rule in want.rules.items():
            kept = _safe_rule(rule, have, clashing)
            if kept is not None:
                rules[key] = kept
        in_use |= {
            vid for group in groups.values() for bucket in group.buckets for vid in _vids(bucket.steps)
        }
        in_use |= {vid for rule in rules.values() for vid in _vids(rule.steps)}
        found[switch] = SwitchRules(rules=rules, groups=groups)
    for switch, state in found.items():
        for key, rule in held[switch].rules.items():
            vid = _transit_vid(rule)
            if vid is not None and vid in in_use and vid not in clashing:
                state.rules.setdefault(key, rule)
    return found


def _clashing(held: Held, desired: Held) -> set[int]:
    """Ids of which a switch holds a rule that the tree now of that id does not have."""
    wanted = {vid for want in desired.values() for r in want.rules.values() if (vid := _transit_vid(r))}
    found: set[int] = set()
    for switch, want in desired.items():
        if held[switch].rules is want.rules:
            continue
        for key, rule in held[switch].rules.items():
            vid = _transit_vid(rule)
            if vid in wanted and vid is not None:
                new = want.rules.get(key)
                if new is None or content_of(new) != content_of(rule):
                    found.add(vid)
    return found


def _safe_group(group: Group, have: SwitchRules, want: SwitchRules, clashing: set[int]) -> Group:
    """The group as desired; or as held; or with another tree of its class; whichever first names no clashing id."""

    def safe(candidate: Group) -> bool:
        return not any(set(_vids(bucket.steps)) & clashing for bucket in candidate.buckets)

    old = have.groups.get(group.group_id)
    if safe(group):
        return group
    if old is not None and old.buckets and safe(old):
        return old
    for other in (*want.groups.values(), *have.groups.values()):
        for bucket in other.buckets:
            vids = set(_vids(bucket.steps))
            if vids and not vids & clashing:
                return Group(group_id=group.group_id, buckets=(_as_class(bucket, group),))
    return group


def _as_class(bucket: Bucket, group: Group) -> Bucket:
    """The bucket of another class's group, tagging for this group's class."""
    code = group.group_id >> 8 & 0xF
    steps = tuple(PushVlan(step.vid, code) if isinstance(step, PushVlan) else step for step in bucket.steps)
    return Bucket(steps=steps)


def _safe_rule(rule: Rule, have: SwitchRules, clashing: set[int]) -> Rule | None:
    """The rule as desired, as held, or none, where its group serves meanwhile."""
    if rule.table == pipeline.TRANSIT:
        return None if _transit_vid(rule) in clashing else rule
    if rule.table != pipeline.UP or not set(_vids(rule.steps)) & clashing:
        return rule
    old = have.rules.get(rule.key)
    if old is not None and old.steps and not set(_vids(old.steps)) & clashing:
        return old
    return None


def _vids(steps: tuple[Step, ...]) -> list[int]:
    return [step.vid for step in steps if isinstance(step, PushVlan)]


def _transit_vid(rule: Rule) -> int | None:
    if rule.table != pipeline.TRANSIT:
        return None
    return next((field.value for field in rule.match if field.name == "vlan_vid"), None)
