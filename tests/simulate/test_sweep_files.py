"""A sweep file is read, or refused with file, line, key and remedy."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate_support import SMALL
from waystage.experiment.loading import kind_of
from waystage.experiment.problems import ExperimentError
from waystage.experiment.schema import TopologyChoice
from waystage.patterns import Pattern, Traffic
from waystage.simulate.arrivals import submissions
from waystage.simulate.loading import load
from waystage.simulate.topologies import build

Write = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(ExperimentError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def pattern(ranks: int = 4) -> Pattern:
    ring = np.arange(ranks)
    sent = Traffic.from_rows(
        np.zeros(ranks), ring, (ring + 1) % ranks, np.zeros(ranks), np.zeros(ranks), np.ones(ranks), ring + 1
    )
    return Pattern(ranks, sent, sent, np.array([0.0, 1.0]), ("",) * ranks)


def test_the_kind_of_a_file_follows_from_its_keys(sweep: Write, tmp_path: Path) -> None:
    assert kind_of(sweep()) == "sweep"
    (tmp_path / "said.yaml").write_text("kind: contention\nalgorithms: {}\n")
    assert kind_of(tmp_path / "said.yaml") == "contention"
    (tmp_path / "other.yaml").write_text("name: x\ntopology: paper\npolicies: [ecmp]\n")
    assert kind_of(tmp_path / "other.yaml") == "policies"
    assert kind_of(tmp_path / "missing.yaml") == "policies"


def test_the_originals_names_mean_ours(sweep: Write) -> None:
    names = "pfsim.router.GreedyRouter2\n  node_selector: [pfsim.node_selector.RandomNodeSelector]"
    loaded = load(sweep(("[d-mod-k, greedy-max]", names)))
    algorithms = loaded.sweep.algorithms
    assert algorithms.router[0].shown == "greedy-max"
    assert algorithms.host_selector[0].shown == "random"
    assert loaded.labels == ("small",)
    assert loaded.clusters[0].total_slots == 8


def test_a_pattern_file_is_a_trace(sweep: Write, tmp_path: Path) -> None:
    pattern().write(tmp_path / "ring.wsp")
    loaded = load(sweep(("pattern: {kind: all-to-all, ranks: 6, bytes: 1000}", "trace: ring.wsp")))
    total = loaded.traffics[0].total
    found = list(zip(total.src.tolist(), total.dst.tolist(), total.amount.tolist(), strict=True))
    assert found == [(0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 0, 4)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("duration: 100\n", "duration: .nan\n", "small.yaml:1: duration: nan is no number"),
        ("duration: 100\n", "duration: -.inf\n", "small.yaml:1: duration: -inf is no number"),
        ("duration: 100\n", "duration: -3\n", "small.yaml:1: duration:"),
        ("duration: 100\n", "duration: long\n", "small.yaml:1: duration: expected a number, got text"),
        ("router:", "routers:", "small.yaml:4: algorithms.routers: unknown key: did you mean router?"),
        ("d-mod-k", "d-mod-q", "small.yaml:4: algorithms.router.0: unknown router 'd-mod-q': did you mean"),
        ("[d-mod-k, greedy-max]", "[]", "small.yaml:4: algorithms.router: the list is empty"),
        ("greedy-max", "d-mod-k", "small.yaml:4: algorithms.router.1: d-mod-k is there twice"),
        ("small.graphml", "nowhere.graphml", "topology.0.params.path: there is no file nowhere.graphml"),
        ("small.graphml", "{kind: cube}", "topology.0.kind: unknown topology 'cube'"),
        ("small.graphml", "{kind: fat-tree}", "topology.0.params: k is missing: fat-tree takes k"),
        ("small.graphml", "{kind: fat-tree, params: {k: 3}}", "topology.0.params: a fat tree of 3-port"),
        ("small.graphml", "{kind: fat-tree, params: {k: 4, kk: 1}}", "unknown parameter of fat-tree"),
        (
            "small.graphml",
            "{kind: fat-tree, params: {k: 4, capacity: .nan}}",
            "topology.params.capacity: nan is no number",
        ),
        (
            "small.graphml",
            "{kind: fat-tree, params: {k: 4, capacity: -1}}",
            "params.capacity: -1 is no capacity",
        ),
        (
            "small.graphml",
            "{kind: fat-tree, params: {k: 4, capacity: 1.0e+300}}",
            "params.capacity: 1e+300 is no capacity",
        ),
        (
            "small.graphml",
            "{kind: xgft, params: {m: [4, 4], w: [1]}}",
            "topology.0.params: XGFT has 2 numbers m",
        ),
        (
            "small.graphml",
            "{kind: xgft, params: {h: 3, m: [4, 4], w: [1, 2]}}",
            "params.h: is 3 where m has 2",
        ),
        ("fixed, params: {value: 10}", "normal", "jobs.0.submit.distribution: 'normal' is not known"),
        ("{value: 10}", "{low: 10}", "jobs.0.submit: distribution fixed takes mean_s, not low_s"),
        ("{value: 10}", "{cube: 10}", "jobs.0.submit.params.cube: unknown parameter: use lambd"),
        ("{value: 10}", "{value: fast}", "jobs.0.submit.params.value: 'fast' is no number"),
        ("ranks: 6", "ranks: 9", "jobs.0.pattern: has 9 ranks, and topology small runs 8 at once"),
        ("all-to-all", "all-to-some", "jobs.0.pattern.kind: 'all-to-some' is not known: did you mean"),
        ("pattern: {kind: all-to-all, ranks: 6, bytes: 1000}", "count: 3", "jobs.0: give either trace"),
        (
            "pattern: {kind: all-to-all, ranks: 6, bytes: 1000}",
            "trace: a.tar.gz",
            "jobs.0.trace: there is no file a.tar.gz",
        ),
        ("    duration: {distribution: fixed, params: {value: 15}}\n", "", "jobs.0: duration is missing"),
        ("bytes: 1000}", "bytes: 1000}\n    stage_in: 5", "jobs.0.stage_in: stages data, which takes time"),
        ("duration: 100\n", "duration: 100\nseeds: [1, 2, 1]\n", "seeds: lists a seed twice"),
        ("duration: 100\n", "duration: 100\nseeds: [-1]\n", "small.yaml:2: seeds.0:"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(sweep: Write, old: str, new: str, said: str) -> None:
    message = refusal(sweep((old, new)))
    assert message.startswith("small.yaml:")
    assert said in message


def test_staging_needs_a_storage_node(sweep: Write) -> None:
    changes = (
        ("duration: 100\n", "duration: 100\nmode: time\n"),
        ("bytes: 1000}", "bytes: 1000}\n    stage_in: 5"),
    )
    assert "topology small has no storage node" in refusal(sweep(*changes))


def test_a_topology_of_two_components_is_refused(sweep: Write, tmp_path: Path) -> None:
    path = sweep()
    file = tmp_path / "small.graphml"
    lines = file.read_text().splitlines()
    # Take away what joins edge2 to the core switches.
    text = "\n".join(lines)
    for source, target in (("core1", "edge2"), ("core2", "edge2")):
        for a, b in ((source, target), (target, source)):
            start = text.find(f'<edge source="{a}" target="{b}"')
            if start >= 0:
                text = text[:start] + text[text.index("</edge>", start) + len("</edge>") :]
    file.write_text(text)
    message = refusal(path)
    assert (
        "topology.0.params.path" in message and "cannot be reached from c1: add the missing link" in message
    )


@pytest.mark.parametrize("capacity", ["nan", "-5", "0", "1e300", "inf"])
def test_a_capacity_that_cannot_be_is_refused(sweep: Write, tmp_path: Path, capacity: str) -> None:
    path = sweep()
    file = tmp_path / "small.graphml"
    file.write_text(file.read_text().replace(">100<", f">{capacity}<", 1))
    assert "give a number above zero, in Mbit/s" in refusal(path)


@pytest.mark.parametrize("cut", [0, 5, 40, -10])
def test_a_truncated_pattern_is_refused(sweep: Write, tmp_path: Path, cut: int) -> None:
    file = tmp_path / "ring.wsp"
    pattern().write(file)
    file.write_bytes(file.read_bytes()[:cut])
    message = refusal(sweep(("pattern: {kind: all-to-all, ranks: 6, bytes: 1000}", "trace: ring.wsp")))
    assert "jobs.0.trace" in message and "ring.wsp" in message


def test_a_pattern_of_a_later_version_is_refused(sweep: Write, tmp_path: Path) -> None:
    file = tmp_path / "ring.wsp"
    pattern().write(file)
    data = bytearray(file.read_bytes())
    struct.pack_into("<H", data, 8, 77)
    file.write_bytes(data)
    message = refusal(sweep(("pattern: {kind: all-to-all, ranks: 6, bytes: 1000}", "trace: ring.wsp")))
    assert "version 77" in message


@pytest.mark.parametrize("submit", ["exponential, params: {lambd: 1.0e+9}", "fixed, params: {value: 0}"])
def test_jobs_that_arrive_too_fast_are_refused_before_they_fill_the_memory(sweep: Write, submit: str) -> None:
    message = refusal(sweep(("fixed, params: {value: 10}", submit)))
    assert (
        "small.yaml:6: jobs.0.submit: more than 1,000,000 jobs arrive within 100 s: give a count" in message
    )


def test_arrivals_depend_on_the_seed_and_the_source_alone(sweep: Write) -> None:
    change = ("fixed, params: {value: 10}", "exponential, params: {lambd: 0.5}")
    one = load(sweep(change)).sweep
    two = load(sweep(change, ("[d-mod-k, greedy-max]", "ecmp"))).sweep
    assert submissions(one, 5) == submissions(two, 5) != submissions(one, 6)
    times = [job.at_s for job in submissions(one, 5)]
    assert times == sorted(times) and len(times) > 20 and max(times) <= 100


@pytest.mark.parametrize(
    ("kind", "params", "hosts", "switches"),
    [
        ("xgft", {"m": [4, 4, 3], "w": [1, 2, 2], "slots": 8}, 48, 12 + 6 + 4),
        ("fat-tree", {"k": 4}, 16, 20),
        ("torus", {"dims": [3, 4], "hosts": 2}, 24, 12),
        ("dragonfly", {"a": 4, "h": 2, "p": 2}, 72, 36),
    ],
)
def test_a_generated_topology_has_the_size_of_its_kind(
    kind: str, params: dict[str, object], hosts: int, switches: int
) -> None:
    cluster = build(TopologyChoice(kind=kind, params=params), Path("."))
    assert (len(cluster.hosts), len(cluster.switches)) == (hosts, switches)
    assert set(cluster.slots) == {params.get("slots", 1)}
    # Every node is reached from the first edge switch, and a storage host is under another switch than the next.
    assert (cluster.switch_distances(cluster.edge_of[0]) >= 0).all()
    stored = build(TopologyChoice(kind=kind, params={**params, "storage": 2}), Path("."))
    assert len({stored.edge_of[h] for h in stored.storage}) == 2
    assert len(stored.compute) == hosts - 2


@given(junk=st.binary(max_size=300))
def test_junk_is_refused_in_one_sentence(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "small.yaml"
    path.write_bytes(SMALL.encode()[: len(junk)] + junk)
    assert "\n" not in refusal(path)
