"""How many rules a path plan costs each switch, in both styles, without a switch: the planner is pure.

python examples/rules_of_a_plan.py [TOPOLOGY]
"""

from __future__ import annotations

import sys

from waystage.events import AssignPaths, RuleStyle, TopologyChanged, envelope
from waystage.interconnect.graphml import read_topology
from waystage.interconnect.planner import desired, rule_counts
from waystage.policies.base import load_policy
from waystage.state import State
from waystage.topology import Topology


def counts(topology: Topology, style: RuleStyle) -> dict[str, int]:
    """switch -> rules and groups under `ecmp` in this style, every host being known."""
    state = State()
    event = TopologyChanged(topology=topology)
    state.apply(envelope(event))
    [action] = load_policy("ecmp", style=style)(event, state)
    assert isinstance(action, AssignPaths)
    macs = {host.name: 0x02_00_00_00_00_01 + index for index, host in enumerate(topology.hosts)}
    return rule_counts(desired(topology, topology, macs, action.plan))


def main() -> int:
    topology = read_topology(sys.argv[1] if len(sys.argv) > 1 else "paper")
    labelled, per_pair = counts(topology, "labelled"), counts(topology, "per-pair")
    print(f"{len(topology.hosts)} hosts   labelled  per-pair")
    for switch in topology.switches:
        print(f"{switch.name:<10} {labelled[switch.name]:>7} {per_pair[switch.name]:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
