"""Single pairs of hosts on another path than their hash gives them.

Arrives: a plan, the choices that each path index has at each edge switch.
Leaves: the path index of each steered pair, and the rules that give it to the pair's packets.
Must not know: why a pair is steered, what choices depend on.

A steered pair takes the path index of another pair. Groups, failover and trees stay as they are, and a pair's packets
cannot loop. The number of pairs at an edge switch is bounded for every plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from waystage.events import PathPlan
from waystage.events.actions import MAX_STEERED
from waystage.interconnect import labels, pipeline, tags
from waystage.interconnect.cookies import stamped
from waystage.interconnect.rules import Field, Goto, Rule, WriteMetadata
from waystage.topology import Topology


class Uplink(msgspec.Struct, frozen=True):
    """A tree, by its root, and the port into it."""

    root: str
    port: int


class PathChoice(msgspec.Struct, frozen=True):
    """Uplinks of a path index at an edge switch: default, backup if its port is down, exceptions by destination
    edge."""

    default: Uplink
    backup: Uplink | None = None
    exceptions: dict[str, Uplink] = {}


Choices = Mapping[str, Mapping[int, PathChoice]]
"""Of class `mpi`: edge switch -> path index -> choice."""


def path_indexes(topology: Topology, plan: PathPlan, choices: Choices) -> dict[tuple[str, str], int]:
    """(source, destination) -> path index of the steered pairs: the first whose tree is that of the core switch asked for.

    Left out are pairs for which there is none, and those beyond MAX_STEERED of an edge switch.
    """
    found: dict[tuple[str, str], int] = {}
    counted: Counter[str] = Counter()
    for src, row in plan.steered.items():
        ingress = topology.attachment[src][0] if src in topology.attachment else ""
        for dst, core in row.items():
            egress = topology.attachment[dst][0] if dst in topology.attachment else ""
            if not ingress or not egress or ingress == egress or counted[ingress] >= MAX_STEERED:
                continue
            for path_index, choice in choices.get(ingress, {}).items():
                if choice.exceptions.get(egress, choice.default).root == core:
                    found[src, dst] = path_index
                    counted[ingress] += 1
                    break
    return found


def rules(topology: Topology, plan: PathPlan, choices: Choices) -> dict[str, list[Rule]]:
    """Ingress edge switch -> rules for each pair, by label and by tag."""
    found: dict[str, list[Rule]] = {}
    mpi = pipeline.class_is(pipeline.class_code("mpi"))
    layout = tags.layout_of(topology)
    for (src, dst), path_index in path_indexes(topology, plan, choices).items():
        ingress, port = topology.attachment[src]
        steps = (WriteMetadata(path_index << 8, pipeline.PATH_MASK), Goto(pipeline.UP))
        addresses = [Field("eth_dst", labels.label_of(topology, dst))]
        if layout is not None:
            addresses.append(layout.of_host(topology, dst))
        found.setdefault(ingress, []).extend(
            stamped(pipeline.SPREAD, pipeline.PRIORITY_STEERED, (Field("in_port", port), mpi, address), steps)
            for address in addresses
        )
    return found
