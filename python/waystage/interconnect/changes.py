"""Orders changes from the rules held to the rules desired so that no packet is lost.

Arrives: rules and groups held, and rules and groups desired, by switch.
Leaves: phases of changes; within one, the switches may be reached in any order and at any speed.
Must not know: topologies, plans, OpenFlow messages.

Phases are `prepare` (rules not in use yet), `switch` (traffic moves) and `clean` (rules no longer in use; packets in
flight need some tens of milliseconds before it). Most switch-overs have only a `switch` phase.
Invariants of the order:

* a tree's rules are installed before packets are tagged for it, and removed after the last;
* a host port changes its style when the new style is complete; the old style stays until all ports have changed;
* on switches common to both, a pair's new path is installed from its end to its start and the old one removed from the
  start; elsewhere, new entries are prepared and old ones cleaned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from waystage.interconnect import collisions, pipeline
from waystage.interconnect.cookies import content_of, rank_of
from waystage.interconnect.rules import Change, Field, Group, Phase, Rule, SwitchRules

Held = dict[str, SwitchRules]
Stage = tuple[int, int]
"""Sort key of a phase: 0 prepare, 1 switch, 2 fall back, 3 clean; then the turn within it."""

PREPARE: Stage = (0, 0)
SWITCH: Stage = (1, 0)
FALL_BACK = 2
CLEAN: Stage = (3, 0)
NAMES: dict[int, Literal["prepare", "switch", "clean"]] = {0: "prepare", 1: "switch", 2: "switch", 3: "clean"}

# Within one phase and switch: rules come before the groups they replace, groups before rules that need them,
# host ports after everything they lead to, deletions last.
_NEW_GROUP, _NEW_RULE, _MOVED_GROUP, _PORT, _OLD_RULE, _OLD_GROUP = range(6)

INGRESS_TABLES = frozenset({pipeline.SPREAD, pipeline.CLASSIFY, pipeline.MARKS})


def difference(held: Held, desired: Held) -> list[Phase]:
    """The minimal changes from `held` to `desired`, in phases. Switches absent from `held` are disconnected and
    skipped."""
    present = {switch: rules for switch, rules in desired.items() if switch in held}
    midway = collisions.midway(held, present)
    if midway is not None:
        return [*_plan(held, midway), *_plan(midway, present)]
    return _plan(held, present)


def count_messages(phases: Iterable[Phase]) -> int:
    """Flow-mods and group-mods in all phases; barriers are not counted."""
    return sum(phase.messages for phase in phases)


def groups_touched(phases: Iterable[Phase]) -> int:
    """How many of the changes are to groups."""
    return sum(
        isinstance(change.item, Group)
        for phase in phases
        for changes in phase.changes.values()
        for change in changes
    )


def _plan(held: Held, desired: Held) -> list[Phase]:
    staged: dict[Stage, dict[str, list[tuple[int, Change]]]] = defaultdict(lambda: defaultdict(list))
    pairs = _PairOrder()
    for switch, want in desired.items():
        have = held[switch]
        if have is want:
            continue
        for stage, turn, change in _group_changes(have, want):
            staged[stage][switch].append((turn, change))
        if have.rules is want.rules:
            continue
        for change in _rule_changes(have, want):
            rule = change.item
            if isinstance(rule, Rule) and rule.table == pipeline.PAIRS:
                pairs.collect(switch, have, want, change)
            elif isinstance(rule, Rule):
                stage, turn = _place(change.op, rule, want)
                staged[stage][switch].append((turn, change))
    for stage, switch, change in pairs.staged():
        staged[stage][switch].append((_OLD_RULE if change.op == "delete" else _NEW_RULE, change))
    phases: list[Phase] = []
    for stage in sorted(staged):
        changes = {
            switch: tuple(change for _, change in sorted(items, key=lambda item: item[0]))
            for switch, items in staged[stage].items()
        }
        phases.append(Phase(name=NAMES[stage[0]], changes=changes))
    return phases


def _group_changes(have: SwitchRules, want: SwitchRules) -> list[tuple[Stage, int, Change]]:
    found: list[tuple[Stage, int, Change]] = []
    for identity, group in want.groups.items():
        old = have.groups.get(identity)
        if old is None:
            found.append((PREPARE, _NEW_GROUP, Change(op="add", item=group)))
        elif old is not group and old != group:
            found.append((SWITCH, _MOVED_GROUP, Change(op="modify", item=group)))
    for identity, group in have.groups.items():
        if identity not in want.groups:
            found.append((CLEAN, _OLD_GROUP, Change(op="delete", item=group)))
    return found


def _rule_changes(have: SwitchRules, want: SwitchRules) -> list[Change]:
    found: list[Change] = []
    for key, rule in want.rules.items():
        old = have.rules.get(key)
        if old is None:
            found.append(Change(op="add", item=rule))
        elif old is not rule and old.cookie != rule.cookie:
            found.append(Change(op="modify", item=rule))
    found += [Change(op="delete", item=rule) for key, rule in have.rules.items() if key not in want.rules]
    return found


def _place(op: str, rule: Rule, want: SwitchRules) -> tuple[Stage, int]:
    """The stage of a change outside PAIRS, and its turn on its switch."""
    if op == "delete":
        return (SWITCH if _is_choice(rule) and _labelled(want) else CLEAN), _OLD_RULE
    if _is_host_port(rule):
        return SWITCH, _PORT
    if _is_choice(rule) or (op == "modify" and rule.table in (*INGRESS_TABLES, pipeline.UP)):
        return SWITCH, _NEW_RULE
    return PREPARE, _NEW_RULE


def _is_host_port(rule: Rule) -> bool:
    return rule.table == pipeline.PORTS and rule.priority == pipeline.PRIORITY_HOST_PORT


def _is_choice(rule: Rule) -> bool:
    """A rule that chooses a pair's path index or tree."""
    return rule.table == pipeline.SPREAD or (
        rule.table == pipeline.UP and rule.priority != pipeline.PRIORITY_PATH_GROUP
    )


def _labelled(want: SwitchRules) -> bool:
    return bool(want.groups)


# -- entries of host pairs -----------------------------------------------------------------------------


class _PairOrder:
    """Orders changes of PAIRS, pair by pair."""

    def __init__(self) -> None:
        self._by_pair: dict[tuple[Field, ...], list[tuple[str, bool, Change]]] = defaultdict(list)
        self._known: dict[int, dict[tuple[Field, ...], list[Rule]]] = {}

    def collect(self, switch: str, have: SwitchRules, want: SwitchRules, change: Change) -> None:
        rule = change.item
        if not isinstance(rule, Rule):
            return
        pair = _pair_of(rule)
        others = self._rules_of(want if change.op == "delete" else have).get(pair, ())
        contents = {content_of(other) for other in others if other.key != rule.key or change.op == "modify"}
        # Free: no packet of the pair is decided differently here because of this change alone.
        free = not contents or contents == {content_of(rule)}
        self._by_pair[pair].append((switch, free, change))

    def staged(self) -> Iterable[tuple[Stage, str, Change]]:
        for items in self._by_pair.values():
            put = sorted({_rank(c) for _, free, c in items if not free and c.op != "delete"})
            taken = sorted({_rank(c) for _, free, c in items if not free and c.op == "delete"}, reverse=True)
            for switch, free, change in items:
                if change.op == "delete":
                    stage = CLEAN if free else (FALL_BACK, taken.index(_rank(change)))
                else:
                    stage = PREPARE if free else (SWITCH[0], put.index(_rank(change)))
                yield stage, switch, change

    def _rules_of(self, rules: SwitchRules) -> dict[tuple[Field, ...], list[Rule]]:
        found = self._known.get(id(rules))
        if found is None:
            found = self._known[id(rules)] = defaultdict(list)
            for rule in rules.rules.values():
                if rule.table == pipeline.PAIRS:
                    found[_pair_of(rule)].append(rule)
        return found


def _pair_of(rule: Rule) -> tuple[Field, ...]:
    return tuple(field for field in rule.match if field.name in ("eth_src", "eth_dst"))


def _rank(change: Change) -> int:
    return rank_of(change.item) if isinstance(change.item, Rule) else 0
