"""Flows with an identity in the simulator: storage targets, wide-area paths, and settings that they obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim_support import NO_COSTS, RATE, experiment, star, wire
from waystage.events import (
    Event,
    FlowAdjusted,
    FlowEndpoint,
    FlowFinished,
    FlowSettings,
    FlowStarted,
    PathPlan,
    decode,
)
from waystage.experiment.problems import ExperimentError
from waystage.experiment.results import RunResult
from waystage.interconnect.graphml import read_topology
from waystage.worlds.sim.network import Network
from waystage.worlds.sim.resources import Flow, Leg
from waystage.worlds.sim.runner import SimWorld

CURVE = [(1.0, 100.0), (2.0, 150.0), (4.0, 80.0)]
"""Bytes a second of a target by its number of loaders."""


def flow(name: str, size: int, resources: tuple[str, ...] = ("fs:0",), **about: Any) -> Flow:
    """On one host: nothing but `resources` holds it."""
    return Flow(
        flow_id=name,
        traffic=about.pop("traffic", "staging"),
        engine="test",
        bytes=size,
        legs=(Leg("c1", "c1", 1.0, resources),),
        source=FlowEndpoint(host="c1"),
        destination=FlowEndpoint(host="c1"),
        **about,
    )


def network(flows: int = 8, **capacities: Any) -> Network:
    made = Network(
        read_topology("paper"),
        resources={"fs:0": CURVE, "far": 100.0} | capacities,
        flows=flows,
    )
    made.route(PathPlan())
    return made


def ends(made: Network, limit_s: float = 1e6) -> dict[int, float]:
    found: dict[int, float] = {}
    while ended := made.run_until(limit_s):
        found |= {number: at_s for at_s, number in ended}
    return found


def test_a_targets_total_follows_the_number_of_its_loaders() -> None:
    made = network()
    alone = made.start(flow("a", 1000))
    assert ends(made)[alone] == pytest.approx(1000 / 100)
    made = network()
    first, second = made.start(flow("a", 600)), made.start(flow("b", 600, loaders=3))
    # Four loaders share 80 B/s: b has three of them, and then a is alone with 100 B/s.
    found = ends(made)
    assert found[second] == pytest.approx(600 / 60)
    assert found[first] == pytest.approx(10 + (600 - 10 * 20) / 100)


def test_a_flow_keeps_to_the_rate_it_is_asked_for_and_to_none_again() -> None:
    made = network()
    number = made.start(flow("a", 1000))
    made.adjust("a", FlowSettings(version=1, rate_bps=8 * 50))
    assert made.run_until(10.0) == []
    made.adjust("a", FlowSettings(version=2))
    assert ends(made)[number] == pytest.approx(10 + 500 / 100)


def test_a_paused_flow_leaves_its_target_to_others_and_goes_on_where_it_was() -> None:
    made = network()
    paused, other = made.start(flow("a", 1000)), made.start(flow("b", 1000))
    made.run_until(4.0)  # 75 B/s each
    made.adjust("a", FlowSettings(version=1, paused=True))
    made.run_until(8.0)  # b alone: 100 B/s
    assert {use.flow_id: (use.bytes_done, use.limited_by) for use in made.progress()} == {
        "a": (300, "paused"),
        "b": (700, ""),
    }
    made.adjust("a", FlowSettings(version=2))
    found = ends(made)
    assert found[other] == pytest.approx(8 + 300 / 75)
    assert found[paused] == pytest.approx(12 + 400 / 100)


def test_other_loaders_change_a_flows_share() -> None:
    made = network()
    a, b = made.start(flow("a", 1000)), made.start(flow("b", 1000))
    made.adjust("a", FlowSettings(version=1, loaders=3))
    found = ends(made)
    assert found[a] == pytest.approx(1000 / 60) and found[b] > found[a]


def test_a_modest_flow_takes_what_others_leave() -> None:
    made = network()
    modest = made.start(flow("m", 1000, ("far",), traffic="wan", mode="modest"))
    other = made.start(flow("o", 500, ("far",), traffic="wan"))
    found = ends(made)
    assert found[other] == pytest.approx(5.0, rel=2e-3)
    assert found[modest] == pytest.approx(15.0, rel=1e-6)


def test_a_flow_in_pieces_reports_its_bytes_across_them() -> None:
    made = network()
    number = made.start(flow("a", 1000, pause_s=1.0, piece_bytes=400))
    made.run_until(7.0)  # 1 + 4 + 1 + 1
    assert [use.bytes_done for use in made.progress()] == [500]
    assert ends(made)[number] == pytest.approx(3 + 10)


def test_settings_of_an_older_version_or_of_a_flow_that_ended_change_nothing() -> None:
    made = network()
    number = made.start(flow("a", 1000))
    made.adjust("a", FlowSettings(version=2, rate_bps=8 * 50))
    made.adjust("a", FlowSettings(version=1, paused=True))
    assert ends(made)[number] == pytest.approx(20.0)
    made.adjust("a", FlowSettings(version=3, paused=True))
    made.adjust("unknown", FlowSettings(version=1, paused=True))


def test_reads_in_service_end_before_fewer_loaders_go_on() -> None:
    made = network()
    # Four loaders share 80 B/s. Their four objects of 100 B end at 5 s, and one loader reads the other four.
    number = made.start(flow("a", 800, loaders=4, object_bytes=100))
    made.run_until(1.0)
    made.adjust("a", FlowSettings(version=1, loaders=2))
    made.adjust("a", FlowSettings(version=2, loaders=1))
    assert ends(made)[number] == pytest.approx(5 + 400 / 100)


def test_a_pause_lets_reads_in_service_end_and_no_other_begin() -> None:
    made = network()
    number = made.start(flow("a", 400, object_bytes=100))
    made.run_until(1.5)
    made.adjust("a", FlowSettings(version=1, paused=True))
    assert made.run_until(10.0) == []
    assert [use.bytes_done for use in made.progress()] == [200]
    made.adjust("a", FlowSettings(version=2))
    assert ends(made)[number] == pytest.approx(10 + 2)


def test_a_leg_has_no_more_streams_than_objects_left() -> None:
    made = network()
    # Four loaders at 80 B/s for four objects, then one loader at 100 B/s for the fifth.
    number = made.start(flow("a", 500, loaders=4, object_bytes=100))
    assert ends(made)[number] == pytest.approx(400 / 80 + 1)


def test_large_objects_are_read_by_as_many_loaders_as_memory_has_room_for() -> None:
    made = network()
    # Four loaders would read two objects each at 80 B/s. Memory has room for two: 150 B/s.
    number = made.start(flow("a", 800, loaders=4, object_bytes=100, memory_bytes=299))
    assert ends(made)[number] == pytest.approx(800 / 150)


def test_targets_share_the_memory_of_a_flow_until_one_of_them_has_ended() -> None:
    made = network(**{"fs:1": CURVE, "fs:2": 100.0})
    legs = (Leg("c1", "c1", 0.75, ("fs:0",)), Leg("c1", "c1", 0.25, ("fs:1",)))
    two = msgspec.structs.replace(flow("a", 800, loaders=4, object_bytes=100, memory_bytes=200), legs=legs)
    number = made.start(two)
    # One loader for each at 100 B/s: at 2 s the second target has ended. The first then has both.
    assert ends(made)[number] == pytest.approx(2 + 400 / 150)


def test_targets_that_end_in_one_moment_share_what_they_leave() -> None:
    made = network(**{"fs:1": CURVE, "fs:2": CURVE})
    legs = tuple(Leg("c1", "c1", share, (f"fs:{at}",)) for at, share in enumerate((0.25, 0.25, 0.5)))
    three = msgspec.structs.replace(flow("a", 800, loaders=4, object_bytes=100, memory_bytes=300), legs=legs)
    number = made.start(three)
    # One loader for each at 100 B/s: at 2 s two targets have ended. The third has all memory: 200 bytes by two loaders.
    assert ends(made)[number] == pytest.approx(2 + 200 / 150)


def test_memory_for_less_than_an_object_lets_one_loader_read() -> None:
    made = network()
    number = made.start(flow("a", 300, loaders=4, object_bytes=100, memory_bytes=50))
    assert ends(made)[number] == pytest.approx(3.0)


Change = tuple[float, int, int | None, bool, int]


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 5.0),
            st.integers(0, 2),
            st.one_of(st.none(), st.integers(0, 2000)),
            st.booleans(),
            st.integers(1, 6),
        ),
        max_size=12,
    ),
    st.sampled_from([0, 70, 100, 5000]),
    st.sampled_from([0, 50, 250]),
    st.sampled_from([(1.0,), (0.5, 0.5), (0.25, 0.25, 0.5)]),
)
def test_whatever_is_asked_no_byte_is_lost_or_moved_twice(
    changes: list[Change], objects: int, memory: int, shares: tuple[float, ...]
) -> None:
    """Progress never falls, never passes the total, and each flow ends once when it is let go."""
    made = network(**{"fs:1": CURVE, "fs:2": CURVE})
    legs = tuple(Leg("c1", "c1", share, (f"fs:{at}",)) for at, share in enumerate(shares))
    numbers = {
        made.start(
            msgspec.structs.replace(
                flow(f"f{i}", 500 * (i + 1), piece_bytes=300, object_bytes=objects, memory_bytes=memory),
                legs=legs,
            )
        )
        for i in range(3)
    }
    ended: list[int] = []
    seen: dict[str, int] = {}
    for version, (after_s, which, rate, paused, loaders) in enumerate(changes, 1):
        limit = made.now + after_s
        while found := made.run_until(limit):
            ended += [number for _, number in found]
        settings = FlowSettings(version=version, rate_bps=rate, paused=paused, loaders=loaders)
        made.adjust(f"f{which}", settings)
        for use in made.progress():
            assert seen.get(use.flow_id, 0) - 1 <= use.bytes_done <= use.bytes and use.rate_bps >= 0
            seen[use.flow_id] = use.bytes_done
    for which in range(3):
        made.adjust(f"f{which}", FlowSettings(version=1000))
    while found := made.run_until(1e6):
        ended += [number for _, number in found]
    assert sorted(ended) == sorted(numbers)


# -- whole experiments --------------------------------------------------------------------------------------


def run(folder: Path, text: str, out: str = "out") -> tuple[RunResult, list[Event]]:
    result = SimWorld().run(experiment(folder, text), folder / out, lambda what, share: None)
    lines = (folder / out / "events.jsonl").read_bytes().splitlines()
    return result, [decode(line).event for line in lines]


WAN = """
name: t
topology: {star}
policies: [{{name: "null"}}, {{name: wan-yields, options: {{back_after_s: 1}}}}]
file_systems: [{{name: fs, targets: 2, bytes_per_s: 4 MB}}]
wide_paths: [{{name: far, bytes_per_s: 100 MB, rtt_s: 0.01}}]
copies: [{{name: c, path: far, direction: out, bytes: 60 MB, file_system: fs, stripes: all}}]
jobs:
  count: 1
  nodes: 1
  arrivals: {{distribution: together}}
  stage_in: {{bytes: 20 MB, file_system: fs, stripes: all}}
  compute: {{program: none}}
"""


def test_a_wide_area_copy_yields_to_a_stage_in_and_returns(tmp_path: Path) -> None:
    result, events = run(tmp_path, WAN.format(star=star(tmp_path)) + NO_COSTS)
    took = {job.policy: job.stage_in_s for job in result.jobs}
    assert took["null"] == pytest.approx(2 * 20 / 8, rel=0.02)
    assert took["wan-yields"] == pytest.approx(20 / 8, rel=0.05)
    asked = [event.settings.mode for event in events if isinstance(event, FlowAdjusted)]
    assert asked == ["modest", None]
    ended = [event for event in events if isinstance(event, FlowFinished)]
    assert len(ended) == 4 and all(event.outcome == "done" for event in ended)


def test_flows_are_published_with_their_job_ends_and_controls(tmp_path: Path) -> None:
    _, events = run(tmp_path, WAN.format(star=star(tmp_path)) + NO_COSTS)
    started = {event.flow_id: event for event in events if isinstance(event, FlowStarted)}
    stage = started["null-1-1:in"]
    assert (stage.job_id, stage.traffic, stage.bytes) == ("null-1-1", "staging", 20_000_000)
    assert stage.source == FlowEndpoint(host="store", targets=("fs:0", "fs:1"))
    assert "loaders" in stage.controls
    copy = started["null-1:c"]
    assert copy.destination == FlowEndpoint(peer="far") and "mode" in copy.controls


def test_storage_shares_divides_the_best_number_among_jobs(tmp_path: Path) -> None:
    text = f"""
name: t
topology: {star(tmp_path)}
policies: ["null", storage-shares]
file_systems: [{{name: fs, targets: 1, bytes_per_s: 1 MB, slowdown: [[1, 1], [4, 2], [16, 64]]}}]
jobs:
  count: 2
  nodes: 1
  stage_in: {{bytes: 8 MB, file_system: fs, loaders: 4}}
  compute: {{program: none}}
"""
    result, events = run(tmp_path, text + NO_COSTS)
    took = {job.policy: job.stage_in_s for job in result.jobs}
    # Eight loaders: 8 / g(8) = 8 / 22.67 MB/s for 16 MB. Four: 2 MB/s, but for the 50 ms before it is obeyed.
    assert took["null"] == pytest.approx(16 / (8 / (2 + 62 * 4 / 12)), rel=0.01)
    assert took["storage-shares"] == pytest.approx(8.0, rel=0.02)
    assert [e.settings.loaders for e in events if isinstance(e, FlowAdjusted)][:3] == [4, 2, 2]


def test_a_job_computes_no_sooner_than_it_is_due(tmp_path: Path) -> None:
    text = f"""
name: t
topology: {star(tmp_path)}
policies: ["null"]
jobs: {{count: 1, nodes: 1, due_s: 30, stage_in: {{bytes: 1 MB}}, compute: {{program: none}}}}
"""
    result, _ = run(tmp_path, text + NO_COSTS)
    assert result.jobs[0].job_s == pytest.approx(30.0)
    assert result.jobs[0].stage_in_s == pytest.approx(wire(1e6) / RATE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("file_system: fs, stripes: all}", "file_system: sf}|there is no file system 'sf'"),
        ("path: far", "path: near|there is no wide-area path 'near'"),
        ("stripes: all}\n  compute", "stripes: 3}\n  compute|3 stripes; fs has 2 targets"),
        ("stripes: all}\n  compute", "stripes: all, memory: 1 MB}\n  compute|memory: needs object_bytes"),
        ("targets: 2, ", "targets: 2, hosts: [x9], |there is no node 'x9'"),
        ("bytes_per_s: 4 MB", "bytes_per_s: 4 MB, slowdown: [[2, 1], [1, 2]]|readers must rise"),
        ("name: c, path", "name: c, mode: rude, path|mode"),
    ],
)
def test_a_resource_that_is_not_there_is_named(tmp_path: Path, change: str, says: str) -> None:
    text, _, expected = says.partition("|")
    with pytest.raises(ExperimentError, match=expected.replace("[", r"\[")):
        experiment(tmp_path, WAN.format(star=star(tmp_path)).replace(change, text))
