"""A switch without groups of type all, on a real Open vSwitch: no tree crosses it, and everything else is in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from openflow_square import SEPARATED, World
from waystage.events import MulticastTree, PathsRefused
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, Group

pytestmark = pytest.mark.lab

TREE = {3: MulticastTree(app="0/a", hosts=("h1", "h2", "h3"), core="core1")}


def test_a_plan_is_in_force_but_for_trees_that_a_switch_refuses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = world.square()
    server = controller._server
    install = server.install

    def refusing(changes: Mapping[int, Sequence[Change]]) -> dict[int, Outcome]:
        asked = [c.item for c in changes.get(3, ()) if isinstance(c.item, Group) and c.item.kind == "all"]
        if asked:
            return {dpid: Outcome(error="no such type", lasting=dpid == 3, own=dpid == 3) for dpid in changes}
        return install(changes)

    def copying() -> int:
        return sum(
            world.ovs.run("ovs-ofctl", "-O", "OpenFlow13", "dump-groups", switch).count("type=all")
            for switch in ("edge1", "edge2", "core1")
        )

    monkeypatch.setattr(server, "install", refusing)
    world.assign(msgspec.structs.replace(SEPARATED, multicast=TREE))
    refused = world.await_event(PathsRefused)
    assert (refused.switch, refused.copies) == ("core1", True)
    assert copying() == 0
    assert world.ping(1, 3) and world.ping(4, 1)
    monkeypatch.setattr(server, "install", install)
    world.assign(msgspec.structs.replace(SEPARATED, seed=1, multicast=TREE))
    assert copying() == 5, "one at the core switch, two at each edge switch"
