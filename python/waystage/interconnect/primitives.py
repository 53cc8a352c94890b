"""Packets of single MPI primitives on other core switches than the rest of their class.

Arrives: a plan, the trees, the choices that each path index has for a primitive's core switches.
Leaves: for each edge switch the groups of each primitive, and the rules that lead its tagged packets to them.
Must not know: why a primitive has these core switches, what choices depend on.

A primitive is matched by the first bits of the tag (`tags.py`), where the packet enters a tree: classes, path indexes,
steered pairs and the way down stay as they are. A packet without a tag, such as one that only acknowledges, goes with its
class. To give a primitive other core switches changes its groups alone. Rules and groups of an edge switch grow with
primitives times path indexes, not with hosts, ranks or jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waystage.interconnect import pipeline, tags
from waystage.interconnect.cookies import stamped
from waystage.interconnect.rules import Field, Group, Output, PushVlan, Rule, SwitchRules, ToGroup
from waystage.interconnect.steering import Choices, PathChoice
from waystage.interconnect.trees import Tree

MakeGroup = Callable[[int, PathChoice], Group]
"""Group id and choice -> group."""


def rules(
    trees: Mapping[str, Tree],
    choices: Mapping[str, Choices],
    targets: Mapping[str, Field],
    group: MakeGroup,
) -> dict[str, SwitchRules]:
    """Edge switch -> what it holds for primitives. `choices` are by primitive, `targets` match tags by edge switch."""
    found: dict[str, SwitchRules] = {}
    mpi = pipeline.class_code("mpi")
    for primitive, by_edge in choices.items():
        kind = tags.primitive_field(primitive)
        code = tags.primitive_code(primitive)
        for edge, by_index in by_edge.items():
            held = found.setdefault(edge, SwitchRules(rules={}, groups={}))
            for path_index, choice in by_index.items():
                made = group(pipeline.primitive_group_id(code, path_index), choice)
                held.groups[made.group_id] = made
                path = Field("metadata", path_index << 8 | mpi, pipeline.PATH_MASK | pipeline.CLASS_MASK)
                steps = (ToGroup(made.group_id),)
                _add(held, stamped(pipeline.UP, pipeline.PRIORITY_PRIMITIVE, (path, kind), steps))
                for target, uplink in choice.exceptions.items():
                    both = _both(kind, targets[target])
                    way = (PushVlan(trees[uplink.root].vid, mpi), Output(uplink.port))
                    _add(held, stamped(pipeline.UP, pipeline.PRIORITY_PRIMITIVE_EXCEPTION, (path, both), way))
    return found


def _add(held: SwitchRules, rule: Rule) -> None:
    held.rules[rule.key] = rule


def _both(one: Field, other: Field) -> Field:
    """Matches what both match."""
    assert one.mask is not None and other.mask is not None
    return Field("eth_dst", one.value | other.value, one.mask | other.mask)
