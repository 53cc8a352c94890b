"""Routers as a run sees them: shipped ones by kernel, one's own by paths, both held to the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simulate_support import small_cluster
from waystage.experiment.pfsim import ALGORITHMS
from waystage.experiment.scheduling import AlgorithmError
from waystage.simulate.algorithms import SHIPPED, build
from waystage.simulate.cluster import Cluster
from waystage.simulate.routing import Routing
from waystage.simulate.traffic import Pairs

CLUSTER = small_cluster(leaves=3, hosts=2, spines=2)
EVERY = [(a, b) for a in range(6) for b in range(6) if a != b]


def everybody(amount: float = 1000.0) -> Pairs:
    src, dst = np.array(EVERY, dtype=np.uint32).T.copy()
    return Pairs(src, dst, np.full(len(EVERY), amount))


def nothing() -> Any:
    return np.zeros(CLUSTER.capacity.size)


@pytest.mark.parametrize("name", sorted(SHIPPED["router"]))
def test_a_shipped_router_gives_each_pair_a_path_that_carries_all_of_it(name: str) -> None:
    router = build("router", name, {}, 3)
    routed = Routing(CLUSTER, router, 3, keep_paths=True).route(everybody(), nothing())
    assert len(routed.offsets) == len(EVERY) + 1
    again = nothing()
    for i, (src, dst) in enumerate(EVERY):
        path = routed.links[int(routed.offsets[i]) : int(routed.offsets[i + 1])]
        assert CLUSTER.links_from[path[0]] == src and CLUSTER.links_to[path[-1]] == dst
        assert (CLUSTER.links_to[path[:-1]] == CLUSTER.links_from[path[1:]]).all()
        again[path] += 1000
    assert np.array_equal(routed.loads, again)
    same = Routing(CLUSTER, build("router", name, {}, 3), 3).route(everybody(), nothing())
    assert np.array_equal(same.loads, routed.loads)


@pytest.mark.parametrize("name", ["greedy-sum", "greedy-max", "joint"])
def test_what_sees_loads_avoids_them(name: str) -> None:
    busy = nothing()
    core1 = CLUSTER.names.index("core1")
    busy[(CLUSTER.links_from == core1) | (CLUSTER.links_to == core1)] = 1e9
    routed = Routing(CLUSTER, build("router", name, {}, 0), 0).route(everybody(), busy)
    assert routed.loads[busy > 0].sum() == 0 and routed.loads.sum() > 0


def test_paths_of_ones_own_are_added_up_and_checked() -> None:
    kernel = Routing(CLUSTER, build("router", "d-mod-k", {}, 0), 0, keep_paths=True)
    routed = kernel.route(everybody(), nothing())
    bounds = routed.offsets.astype(int)
    known = [routed.links[a:b].tolist() for a, b in itertools.pairwise(bounds)]

    class Own:
        def __init__(self, change: Any) -> None:
            self.change = change

        def paths(
            self, src: Any, dst: Any, amounts: Any, loads: Any, cluster: Cluster
        ) -> Sequence[Sequence[int]]:
            amounts[:] = 0  # whatever it does to what it is given
            found: Sequence[Sequence[int]] = self.change([list(path) for path in known])
            return found

    loads = Routing(CLUSTER, Own(lambda paths: paths), 0).route(everybody(), nothing()).loads
    assert np.array_equal(loads, routed.loads)
    wrong = {
        "gave 29 paths for 30 pairs": lambda paths: paths[:-1],
        "from c1 to c2 is none": lambda paths: [paths[0][:-1], *paths[1:]],
        "from c1 to c2 is none: it is empty": lambda paths: [[], *paths[1:]],
        "used link 999": lambda paths: [[999], *paths[1:]],
        "something other than lists": lambda paths: [["left", "right"], *paths[1:]],
    }
    for said, change in wrong.items():
        with pytest.raises(AlgorithmError, match=said):
            Routing(CLUSTER, Own(change), 0).route(everybody(), nothing())


def test_every_other_name_means_a_shipped_algorithm() -> None:
    assert set(ALGORITHMS) == set(SHIPPED)
    for task, shipped in SHIPPED.items():
        assert set(ALGORITHMS[task].values()) <= set(shipped)


def test_the_template_takes_the_lowest_link_of_a_shortest_path() -> None:
    routed = Routing(CLUSTER, build("router", "first-path", {}, 0), 0).route(everybody(), nothing())
    crossing = routed.links[int(routed.offsets[1]) : int(routed.offsets[2])]
    assert [CLUSTER.names[CLUSTER.links_to[link]] for link in crossing] == ["edge1", "core1", "edge2", "c3"]
    core2 = CLUSTER.names.index("core2")
    assert not routed.loads[(CLUSTER.links_from == core2) | (CLUSTER.links_to == core2)].any()
