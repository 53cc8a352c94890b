"""Modules for MPI primitives: their answers become plans, and mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.policies.test_collective_paths import SIXTEEN, Controlled

from waystage.events import LinkDown
from waystage.policies.base import PolicyError, load_policy


class ToTheOther:
    """A user's module: moves with the number of jobs."""

    def __call__(self, packets: Any, state: Any) -> Any:
        return (packets.cores[len(state.jobs) % len(packets.cores)],)


def only_on(primitive: str, core: object) -> dict[str, Any]:
    return {"primitive": primitive, "module": "only-on", "options": {"core": core}}


class Primitives(Controlled):
    def __init__(self, *modules: dict[str, Any], **options: Any) -> None:
        self.modules = list(modules)
        super().__init__(SIXTEEN, **options)

    def load(self, **options: Any) -> Any:
        return load_policy("primitive-paths", modules=self.modules, **options)


def test_each_primitive_has_the_core_switch_that_its_module_names() -> None:
    control = Primitives(only_on("bcast", 0), only_on("reduce", "core2"), only_on("barrier", 3))
    assert control.plan.primitives == {"bcast": ("core1",), "reduce": ("core2",), "barrier": ("core4",)}


def test_a_module_of_a_users_own_is_called_by_its_dotted_name() -> None:
    control = Primitives({"primitive": "bcast", "module": f"{__name__}:ToTheOther"})
    assert control.plan.primitives == {"bcast": ("core1",)}


def test_without_its_core_switch_a_primitive_goes_as_other_traffic() -> None:
    control = Primitives(only_on("bcast", 0))
    for link in SIXTEEN.adjacency["core1"]:
        control.see(LinkDown(link=link.name))
    live = control.state.live_topology
    assert live is not None
    if "core1" not in {switch.name for switch in live.switches}:
        assert not control.plan.primitives


def test_short_messages_are_kept_apart_from_long_ones_as_programs_declare_them() -> None:
    modules = [{"primitive": name, "module": "latency-apart"} for name in ("allreduce", "bcast", "barrier")]
    control = Primitives(*modules)
    assert control.plan.primitives == {"barrier": ("core4",)}
    control.start("0/a", list(SIXTEEN.compute_hosts))
    control.declare("0/a", 16, bytes=8)
    control.declare("0/a", 16, "binomial", primitive="bcast", bytes=1 << 20)
    assert control.plan.primitives["allreduce"] == ("core4",)
    assert control.plan.primitives["bcast"] == ("core1", "core2", "core3")


def test_a_collective_can_be_steered_as_well() -> None:
    control = Primitives(only_on("bcast", 0), base="collective-paths", seed=1)
    control.start("0/a", list(SIXTEEN.compute_hosts))
    control.declare("0/a", 16)
    assert control.plan.steered and control.plan.primitives == {"bcast": ("core1",)}


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ([], "list of 1 to"),
        ([only_on("bcast", 0), only_on("bcast", 1)], "bcast has two"),
        ([only_on("broadcast", 0)], "is no primitive"),
        ([only_on("bcast", -1)], "core -1"),
        ([{"primitive": "bcast", "module": "nearest"}], "unknown primitive module"),
        ([{"primitive": "bcast"}], "mapping of primitive, module and options"),
    ],
)
def test_mistakes_in_modules_are_named(modules: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        load_policy("primitive-paths", modules=modules)


def test_a_core_switch_that_the_topology_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="core9"):
        Primitives(only_on("bcast", "core9"))
