"""Dragonflies and tori: routing by detours, bounds beside results, mappings judged by their router, pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.experiment.schema import TopologyChoice
from waystage.experiment.sweep_summary import summarise, table_rows
from waystage.native_options.routes import RouteOptions
from waystage.simulate import figures
from waystage.simulate.algorithms import SHIPPED
from waystage.simulate.bounds import lower_bound
from waystage.simulate.cluster import Cluster
from waystage.simulate.combinations import combinations
from waystage.simulate.loading import load
from waystage.simulate.one_run import simulate
from waystage.simulate.positions import positions_of
from waystage.simulate.records import Metrics
from waystage.simulate.results import save
from waystage.simulate.runner import run
from waystage.simulate.topologies import build
from waystage.simulate.traffic import Pairs

Write = Callable[..., Path]

DRAGONFLY = {"a": 4, "h": 1, "p": 2}

SCENARIO = """\
duration: 20
topology: {topology}
algorithms:
  process_mapper: {{name: {mapper}, options: {options}}}
  router: {router}
seeds: [{seed}]
jobs:
  - submit: {{distribution: fixed, params: {{value: 10}}}}
    duration: {{distribution: fixed, params: {{value: 15}}}}
    count: 1
    pattern: {pattern}
"""


def cluster_of(kind: str, params: dict[str, Any]) -> Cluster:
    return build(TopologyChoice(kind=kind, params=params), Path("."))


def metrics_of(folder: Path, **values: object) -> Metrics:
    values = {"mapper": "block", "options": "{}", "router": "d-mod-k", "seed": 1} | values
    path = folder / "direct.yaml"
    path.write_text(SCENARIO.format(**values))
    loaded = load(path)
    (which,) = combinations(loaded)
    found = simulate(loaded, which)
    assert found.status == "done", found.cause
    return found.metrics


TOPOLOGIES = {
    "dragonfly": "{kind: dragonfly, params: {a: 4, h: 1, p: 1}}",
    "torus": "{kind: torus, params: {dims: [4, 4], hosts: 1}}",
    "fat-tree": "{kind: fat-tree, params: {k: 4}}",
}

PATTERNS = (
    "{kind: grid, ranks: 16, bytes: 1000}",
    "{kind: ring, ranks: 12, bytes: 1000}",
    "{kind: random, ranks: 15, partners: 3, bytes: 1000}",
)


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_more_effort_and_more_starts_never_give_a_worse_mapping(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("effort")
    case = {
        "topology": TOPOLOGIES[data.draw(st.sampled_from(sorted(TOPOLOGIES)))],
        "pattern": data.draw(st.sampled_from(PATTERNS)),
        "router": data.draw(
            st.sampled_from(["d-mod-k", "random", "ecmp", "greedy-max", "valiant", "ugal-g"])
        ),
        "seed": data.draw(st.integers(0, 5)),
        "mapper": "application-aware",
    }
    efforts = sorted(data.draw(st.lists(st.sampled_from([0, 0.1, 0.2, 0.3]), min_size=2, max_size=3)))
    found = [
        metrics_of(folder, **case, options=f"{{effort: {e}, starts: 2}}").max_load_bytes for e in efforts
    ]
    assert found == sorted(found, reverse=True), f"{case}: {list(zip(efforts, found, strict=True))}"
    starts = [
        metrics_of(folder, **case, options=f"{{effort: 0.1, starts: {n}}}").max_load_bytes for n in (1, 4)
    ]
    assert starts == sorted(starts, reverse=True), f"{case}: {starts}"
    block = metrics_of(folder, **case | {"mapper": "block"}, options="{}").max_load_bytes
    assert found[0] <= block


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
@pytest.mark.parametrize("router", sorted(SHIPPED["router"]))
def test_no_router_is_below_the_bound_beside_it(tmp_path: Path, topology: str, router: str) -> None:
    found = metrics_of(tmp_path, topology=TOPOLOGIES[topology], pattern=PATTERNS[0], router=router)
    assert 0 < found.bound_bytes <= found.max_load_bytes
    assert found.gap is not None and found.gap >= 0
    assert found.bound_over == (
        "all paths" if router in ("valiant", "ugal-l", "ugal-g", "first-path") else "shortest paths"
    )


def test_detours_spread_what_one_group_sends_to_another() -> None:
    """As in crates/flowsim/tests/non_minimal.rs: 8 hosts to 8, one cable by shortest paths, four out of the group."""
    cluster = cluster_of("dragonfly", DRAGONFLY)
    src, dst = (a.ravel().astype(np.uint32) for a in np.meshgrid(np.arange(2), np.arange(8, 16)))
    pairs = Pairs(src, dst, np.ones(src.size))
    most = {}
    for name in ("d-mod-k", "valiant", "ugal-g"):
        routes = cluster.network.route_loads(name, src, dst, pairs.amount, RouteOptions(seed=2))
        most[name] = cluster.network.max_load(routes.loads)
    assert most["d-mod-k"] == 16 and most["valiant"] < 16 and most["ugal-g"] <= 8
    assert lower_bound(cluster, [pairs], shortest=True) == pytest.approx(16)
    assert lower_bound(cluster, [pairs], shortest=False) == pytest.approx(4, rel=0.05)


def test_bound_gap_and_spread_are_in_the_table_and_in_the_result(sweep: Write, tmp_path: Path) -> None:
    change = ("duration: 100\n", "duration: 100\nseeds: [1, 2]\n")
    loaded = load(sweep(change, ("[d-mod-k, greedy-max]", "[random, joint]")))
    run(loaded, tmp_path / "out", lambda what, share: None, processes=1)
    result = save(loaded, tmp_path / "out")
    for line in table_rows(summarise(result), "load", ["router"]):
        assert (
            line["bound"].endswith("B") and line["gap"].endswith("%") and line["spread"].startswith("range: ")
        )
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert all(made["metrics"]["bound_bytes"] > 0 for made in kept["runs"])


@pytest.mark.parametrize(
    ("kind", "params", "drawn"),
    [
        ("dragonfly", DRAGONFLY, "dragonfly"),
        ("torus", {"dims": [3, 4]}, "torus"),
        ("torus", {"dims": [2, 3, 4]}, "torus"),
        ("torus", {"dims": [6]}, "ring"),
        ("fat-tree", {"k": 4}, "layers"),
        ("xgft", {"m": [2, 2], "w": [1, 2]}, "layers"),
    ],
)
def test_a_topology_is_drawn_by_its_kind_with_both_directions_and_nothing_clipped(
    kind: str, params: dict[str, Any], drawn: str
) -> None:
    cluster = cluster_of(kind, params)
    places = positions_of(cluster, kind, params)
    assert places.kind == drawn
    shown = np.stack([places.x, places.y], axis=1)[0 if places.shows_hosts else len(cluster.hosts) :]
    assert len({tuple(np.round(at, 6)) for at in shown.tolist()}) == len(shown), "two nodes at one place"
    between = np.flatnonzero(cluster.between_switches)
    peak = np.zeros(cluster.capacity.size)
    peak[between[0]], peak[between[0] ^ 1] = 4.7e9, 1.0e9
    picture = figures.coloured_topology(cluster, peak, places, f"{kind} so and so", 1e9)
    assert picture is not None
    assert f"{kind} so and so" in picture and "4.7 GB" in picture and "bound" in picture
    assert cluster.link_names[between[0]].replace(">", "&gt;") in picture
    lines = re.search(r'<g id="LineCollection_1">(.*?)</g>', picture, re.DOTALL)
    assert lines is not None
    colours = re.findall(r"stroke: (#\w+)", lines[1])
    count = (
        int(np.count_nonzero(places.wraps[between])) + between.size if not places.shows_hosts else peak.size
    )
    assert len(colours) == count
    # 4.7 and 1 differ, and so do the two directions from all that carry nothing.
    assert len(set(colours)) == 3


def test_a_torus_draws_a_cable_that_wraps_as_two_stubs() -> None:
    cluster = cluster_of("torus", {"dims": [4, 4]})
    places = positions_of(cluster, "torus", {"dims": [4, 4]})
    # Four rows and four columns have one cable each that wraps, of two links.
    assert int(places.wraps.sum()) == 16


def test_a_slow_capacity_is_warned_of_with_its_unit_and_units_are_read(sweep: Write) -> None:
    bare = load(sweep(("small.graphml", "{kind: fat-tree, params: {k: 4, capacity: 1}}")))
    (said,) = bare.warnings
    assert said == (
        "topology fat-tree: links carry 1 Mbit/s, since a capacity without a unit is in Mbit/s: "
        "write 1 Gbit/s if that is intended"
    )
    for text, rate in (("1 Gbit/s", 125e6), ("0.4Tbps", 50e9), ("100", 12.5e6), ("'2000 Mbit/s'", 250e6)):
        units = load(sweep(("small.graphml", f"{{kind: fat-tree, params: {{k: 4, capacity: {text}}}}}")))
        assert units.warnings == () and units.clusters[0].capacity[0] == pytest.approx(rate)


def test_a_graphml_capacity_may_have_its_unit(sweep: Write, tmp_path: Path) -> None:
    path = sweep()
    file = tmp_path / "small.graphml"
    text = file.read_text().replace(
        'attr.name="capacity" attr.type="double"', 'attr.name="capacity" attr.type="string"'
    )
    file.write_text(text.replace(">100<", ">0.1 Gbit/s<"))
    cluster = load(path).clusters[0]
    assert set(cluster.capacity[~cluster.between_switches].tolist()) == {12.5e6}
