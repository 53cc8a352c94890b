"""Routes and loads through the compiled module: PFSim's figures, bounds, and what is refused."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import bench_module
from waystage._native import FlowError, Network
from waystage.bench import BenchError, BenchOptions
from waystage.interconnect.generate import leaf_spine
from waystage.interconnect.graphml import write_topology
from waystage.native_options.routes import RouteOptions

ROUTERS = ("d-mod-k", "s-mod-k", "random", "ecmp-hash", "greedy-sum", "greedy-max", "joint")


ORACLE = bench_module("pfsim_oracle")

needs_data = pytest.mark.skipif(
    not (ORACLE.DATA / "cg-c-128.tar.gz").exists(),
    reason="PFSim's example is not there: set WAYSTAGE_PFSIM_DATA to the folder that has it",
)


def u32(*numbers: int) -> NDArray[np.uint32]:
    return np.array(numbers, dtype=np.uint32)


def f64(*numbers: float) -> NDArray[np.float64]:
    return np.array(numbers, dtype=np.float64)


def archive(path: Path, ranks: int, seed: int) -> Path:
    """A trace in PFSim's format whose members are not in the order of ranks, with many equal pairs."""
    rng = random.Random(seed)
    order = list(range(ranks))
    rng.shuffle(order)
    with tarfile.open(path, "w:gz") as tar:
        for rank in order:
            sizes = [rng.choice([0, 0, 1000, 1000, 7000]) if d != rank else 0 for d in range(ranks)]
            record = {
                "rank": rank,
                "n_procs": ranks,
                "tx_bytes": sizes,
                "rx_bytes": [0] * ranks,
                "tx_messages": [int(size > 0) for size in sizes],
                "rx_messages": [0] * ranks,
                "tx_message_sizes": [{"message_size": 1000, "frequency": 1}],
            }
            data = json.dumps(record).encode()
            member = tarfile.TarInfo(f"run-result{rank}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@needs_data
def test_the_published_maxima_come_out_to_nine_digits() -> None:
    result = ORACLE.run(BenchOptions())
    assert result["figures"]["max_rel_error"] <= 1e-9
    assert result["details"]["block + d-mod-k, bytes"] == 5_928_262_656


@pytest.mark.parametrize("seed", range(4))
def test_other_traces_and_topologies_are_replayed_exactly(tmp_path: Path, seed: int) -> None:
    # Twelve core switches: core10 sorts before core2.
    topology = leaf_spine(4, 5, 12, storage_hosts=0)
    write_topology(topology, tmp_path / "t.graphml")
    given = {"trace": archive(tmp_path / "t.tar.gz", 20, seed), "topology": tmp_path / "t.graphml"}
    result = ORACLE.run(BenchOptions(inputs=given))
    assert result["figures"]["max_rel_error"] == 0.0
    assert result["details"]["block + d-mod-k, bytes"] > 0


def test_a_trace_that_does_not_fit_the_topology_is_refused(tmp_path: Path) -> None:
    write_topology(leaf_spine(2, 2, 1, storage_hosts=0), tmp_path / "t.graphml")
    given = {"trace": archive(tmp_path / "t.tar.gz", 6, 0), "topology": tmp_path / "t.graphml"}
    with pytest.raises(BenchError, match="6 ranks"):
        ORACLE.run(BenchOptions(inputs=given))


@needs_data
def test_mapping_and_joint_routing_reach_their_bars() -> None:
    result = bench_module("mapping").run(BenchOptions())
    assert result["figures"]["best_ratio"] <= 0.46
    assert result["figures"]["routing_gap_pct"] <= 0.1
    assert result["details"]["largest_gap_to_undivided_pct"] <= 0.1
    joint_by_greedy = [row["joint"] / row["greedy-max"] for row in result["details"]["ratios"].values()]
    assert max(joint_by_greedy) <= 1 + 1e-6 and min(joint_by_greedy) < 1


def test_the_load_part_of_the_scale_benchmark_routes_every_flow() -> None:
    seconds, row = bench_module("_load_scale").measure(1_024, 2_000, "d-mod-k")
    assert seconds > 0 and row["flows"] == 2_000


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_gives_the_same_routes(router: str) -> None:
    network = Network.fat_tree(4, 1e9, 1e9)
    rng = np.random.default_rng(1)
    src, dst = (rng.integers(0, 16, 60, dtype=np.uint32) for _ in range(2))
    amount = rng.integers(1, 100, 60).astype(np.float64)
    one, other = (
        network.route_loads(router, src, dst, amount, RouteOptions(seed=5, keep_paths=True)) for _ in range(2)
    )
    assert one.loads.tobytes() == other.loads.tobytes()
    assert one.links.tobytes() == other.links.tobytes()
    again = np.zeros(one.loads.size)
    network.add_paths(again, one.offsets, one.links, one.bytes)
    assert np.array_equal(again, one.loads)


@pytest.mark.parametrize("router", ["random", "ecmp-hash"])
def test_another_seed_gives_other_paths(router: str) -> None:
    network = Network.fat_tree(8, 1e9, 1e9)
    src = np.arange(64, dtype=np.uint32)
    dst, amount = src + 64, np.ones(64)
    loads = {
        network.route_loads(router, src, dst, amount, RouteOptions(seed=s)).loads.tobytes() for s in range(5)
    }
    assert len(loads) == 5


def test_the_bound_of_shifted_traffic_in_a_fat_tree_is_met_exactly() -> None:
    # Each of 16 hosts sends to the one half the tree away: full bisection carries that with one flow a link.
    network = Network.fat_tree(4, 1e9, 1e9)
    src = np.arange(16, dtype=np.uint32)
    dst, amount = (src + 8) % 16, np.full(16, 3.0)
    bound, split, weights = network.splittable_bound(src, dst, amount)
    assert bound == pytest.approx(3.0) and split == pytest.approx(3.0)
    assert weights.sum() == pytest.approx(1.0)
    assert network.max_load(network.route_loads("joint", src, dst, amount).loads) == 3.0


def test_capacities_count_where_they_are_asked_for() -> None:
    # Two core switches, one with a tenth of the other's capacity; bytes alone would fill both alike.
    ends = [(0, 2, 1e9), (1, 3, 1e9), (2, 4, 1e9), (2, 5, 1e8), (3, 4, 1e9), (3, 5, 1e8)]
    both = [(a, b, c) for one, two, c in ends for a, b in ((one, two), (two, one))]
    network = Network(
        2,
        4,
        u32(*(a for a, _, _ in both)),
        u32(*(b for _, b, _ in both)),
        f64(*(c for _, _, c in both)),
        ["h0", "h1", "e0", "e1", "fast", "slow"],
    )
    src, dst, amount = np.zeros(11, np.uint32), np.ones(11, np.uint32), np.ones(11)

    def over_slow(by_capacity: bool) -> float:
        found = network.route_loads(
            "joint", src, dst, amount, RouteOptions(per_flow=True, by_capacity=by_capacity)
        )
        return float(found.loads[network.links_to == 5].sum())

    assert over_slow(False) in (5.0, 6.0)
    assert over_slow(True) == 1.0


def test_what_cannot_be_routed_is_refused_in_a_sentence() -> None:
    network = Network(2, 2, u32(0, 2, 1, 3), u32(2, 0, 3, 1), f64(1, 1, 1, 1), ["a", "b", "s", "t"])
    with pytest.raises(FlowError, match="no way from host a to host b"):
        network.route_loads("joint", u32(0), u32(1), f64(1))
    with pytest.raises(FlowError, match="no router 'shortest': use one of d-mod-k"):
        network.route_loads("shortest", u32(0), u32(1), f64(1))
    with pytest.raises(FlowError, match="bytes: give a finite number"):
        network.route_loads("random", u32(0), u32(1), f64(float("nan")))
    with pytest.raises(FlowError, match="names host 7"):
        network.splittable_bound(u32(0), u32(7), f64(1))
    with pytest.raises(FlowError, match="2 given where 1 are needed"):
        network.route_loads("random", u32(0), u32(1, 0), f64(1))
    for capacity in (float("nan"), -1.0, 0.0, 1e300):
        with pytest.raises(FlowError, match=r"link a-s has the capacity .*above zero"):
            Network(1, 1, u32(0), u32(1), f64(capacity), ["a", "s"])
    with pytest.raises(FlowError, match="even number"):
        Network.fat_tree(5, 1.0, 1.0)


def test_refining_moves_no_rank_to_a_host_without_room() -> None:
    network = Network.xgft([4, 4], [1, 2], 1e9, 1e9)
    ranks = 30
    rng = np.random.default_rng(2)
    src, dst = (rng.integers(0, ranks, 200, dtype=np.uint32) for _ in range(2))
    start = (np.arange(ranks) % 16).astype(np.uint32)
    slots = np.full(16, 2, dtype=np.uint32)
    found, busiest = network.refine_mapping(src, dst, np.ones(200), start, slots, seed=3)
    assert np.bincount(found, minlength=16).max() <= 2
    _, before = network.refine_mapping(src, dst, np.ones(200), start, slots, effort=0.0)
    assert busiest < before
