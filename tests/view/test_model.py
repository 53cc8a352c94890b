"""What the view's model says of events: the rows of a page, and only those that have changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage import events
from waystage.events import Envelope, Event, decode_action, encode_action
from waystage.interconnect.generate import fat_tree
from waystage.state import State
from waystage.view.frames import Frame, decode, encode, merge
from waystage.view.model import ViewModel

SECOND = 1_000_000_000


class Site:
    """Events of one controller, a second apart unless a time is given."""

    def __init__(self, **options: Any) -> None:
        self.model = ViewModel(**options)
        self.count = 0

    def tell(self, *told: Event, source: str = "site.a1") -> None:
        for event in told:
            self.count += 1
            item = Envelope(
                event=event,
                event_id=f"e{self.count}",
                source=source,
                seq=self.count,
                time_ns=self.count * SECOND,
            )
            self.model.apply(item)

    def frame(self) -> Frame:
        found = self.model.take(self.count * SECOND)
        assert found is not None
        return found

    def row(self, section: str, key: str) -> dict[str, Any]:
        return self.model.whole(0).set[section][key]


def use(*ports: tuple[str, int, dict[Any, int]]) -> events.LinkUse:
    """In one second."""
    parts = [events.PortUse(node=n, port=p, bytes=sum(by.values()), by_class=by) for n, p, by in ports]
    return events.LinkUse(interval_ns=SECOND, ports=tuple(parts))


def test_a_link_shows_the_use_of_each_class_in_its_direction() -> None:
    topology = fat_tree(4)
    link = topology.switch_links[0]
    site = Site()
    site.tell(events.TopologyChanged(topology=topology))
    assert site.frame().topology["name"] == topology.name
    site.tell(use((link.a, link.a_port, {"mpi": 1_000_000, "staging": 500_000})))
    assert site.frame().set["links"] == {link.name: {"ab": [12_000_000, 8_000_000, 4_000_000, 0, 0]}}
    site.tell(use((link.a, link.a_port, {})))
    assert site.frame().set["links"] == {link.name: {}}
    site.tell(events.LinkDown(link=link.name))
    assert site.frame().set["links"] == {link.name: {"down": 1}}


def test_nothing_is_sent_where_nothing_has_changed() -> None:
    site = Site()
    site.tell(events.TopologyChanged(topology=fat_tree(4)))
    site.frame()
    assert site.model.take(0) is None


def test_hosts_above_the_limit_are_one_node_for_each_edge_switch() -> None:
    topology = fat_tree(4)
    site = Site(collapse_above=8)
    site.tell(events.TopologyChanged(topology=topology))
    shape = site.frame().topology
    assert shape["collapsed"] and not [n for n in shape["nodes"] if n["kind"] == "compute"]
    edge, port = topology.attachment[topology.hosts[0].name]
    second = next(h.name for h in topology.hosts[1:] if topology.attachment[h.name][0] == edge)
    site.tell(use((edge, port, {"io": 1000}), (edge, topology.attachment[second][1], {"io": 500})))
    assert site.row("links", f"{edge}:hosts")["ba"] == [12_000, 0, 0, 12_000, 0]
    assert {row["host"]: row["to"][0] for row in site.model.hosts_at(edge) if "to" in row} == {
        topology.hosts[0].name: 8000,
        second: 4000,
    }


def test_a_job_has_phases_until_its_last_staging_has_ended() -> None:
    site = Site()
    site.tell(
        events.StagingStarted(job_id="7", direction="in", nodes=("c1",), user="ada"),
        events.StagingFinished(job_id="7", direction="in"),
        events.JobStarted(job_id="7", nodes=("c1", "c2"), user="ada"),
        events.StagingStarted(job_id="7", direction="out"),
        events.JobFinished(job_id="7"),
    )
    row = site.row("jobs", "7")
    assert row["phases"] == [["in", 1000, 2000], ["run", 3000, 5000], ["out", 4000, None]]
    assert row["user"] == "ada" and "ended" not in row
    site.tell(events.StagingFinished(job_id="7", direction="out"))
    assert site.row("jobs", "7")["ended"]


def test_a_flow_tells_what_limits_it_and_how_it_ended() -> None:
    site = Site()
    site.tell(events.FlowStarted(flow_id="n1:1", traffic="staging", engine="copy", bytes=100))
    site.tell(
        events.FlowProgress(
            agent="n1",
            flows=(events.FlowUse(flow_id="n1:1", bytes_done=40, rate_bps=800, limited_by="source"),),
        )
    )
    row = site.row("flows", "n1:1")
    assert (row["done"], row["rate"], row["limit"]) == (40, 800, "source")
    site.frame()
    site.tell(events.FlowsListed(agent="n1", flows=()))
    assert site.row("flows", "n1:1")["outcome"] == "lost"


def test_a_flow_that_begins_and_ends_between_two_frames_is_shown_as_it_was() -> None:
    site = Site()
    site.tell(
        events.FlowStarted(flow_id="n1:1", traffic="staging", engine="copy", job_id="7", bytes=100),
        events.FlowFinished(flow_id="n1:1", bytes_done=100),
    )
    row = site.frame().set["flows"]["n1:1"]
    assert (row["class"], row["engine"], row["job"], row["started"]) == ("staging", "copy", "7", 1000)
    assert (row["outcome"], row["ended"], row["done"]) == ("done", 2000, 100)


def test_flows_that_no_frame_has_shown_are_not_said_to_be_gone() -> None:
    site = Site()

    def short(first: int, last: int) -> None:
        for n in range(first, last):
            site.tell(events.FlowStarted(flow_id=f"n1:{n}", traffic="io", engine="copy"))
            site.tell(events.FlowFinished(flow_id=f"n1:{n}"))

    short(0, 150)
    frame = site.frame()
    assert list(frame.set["flows"]) == [f"n1:{n}" for n in range(50, 150)] and "flows" not in frame.gone
    short(150, 300)
    frame = site.frame()
    assert frame.gone["flows"] == [f"n1:{n}" for n in range(50, 150)]
    short(300, 301)
    assert "n1:300" in site.model.whole(0).set["flows"]  # what a page has that comes now
    short(301, 500)
    assert "n1:300" in site.frame().gone["flows"]


IDS = st.sampled_from(["1", "2", "3"])
FLOWS = st.sampled_from(["n1:1", "n1:2", "n2:1"])
USES = st.builds(events.FlowUse, flow_id=FLOWS, bytes_done=st.integers(0, 9), version=st.integers(0, 2))
TOLD: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        events.JobStarted, job_id=IDS, nodes=st.just(("c1",)), user=st.sampled_from(["", "ada", "bob"])
    ),
    st.builds(events.JobFinished, job_id=IDS),
    st.builds(events.StagingStarted, job_id=IDS, direction=st.sampled_from(["in", "out"])),
    st.builds(events.StagingFinished, job_id=IDS, direction=st.sampled_from(["in", "out"])),
    st.builds(events.IoStarted, job_id=IDS),
    st.builds(events.FlowStarted, flow_id=FLOWS, traffic=st.just("io"), engine=st.just("copy"), job_id=IDS),
    st.builds(events.FlowProgress, agent=st.just("n1"), flows=st.lists(USES, max_size=3).map(tuple)),
    st.builds(events.FlowFinished, flow_id=FLOWS, outcome=st.sampled_from(["done", "failed"])),
    st.builds(events.FlowsListed, agent=st.just("n1"), flows=st.lists(FLOWS, max_size=2).map(tuple)),
    st.builds(
        events.IoApplicationStarted, app=IDS, host=st.just("c1"), agent=st.just("n1"), ranks=st.just(2)
    ),
    st.builds(events.IoRequested, app=IDS, agent=st.just("n1"), op=st.integers(1, 4)),
    st.builds(events.TopologyChanged, topology=st.sampled_from([fat_tree(4), fat_tree(6)])),
    st.builds(events.SwitchDown, switch=st.just("core1")),
    st.builds(
        events.Decided,
        policy=st.just("p"),
        cause_id=st.integers(1, 30).map("e{}".format),
        actions=st.just(()),
    ),
    st.builds(
        events.PathsRefused,
        cause_id=st.integers(1, 30).map("e{}".format),
        switch=st.just("s"),
        reason=st.just("r"),
    ),
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(TOLD, st.integers(0, 50)), max_size=30),
    st.lists(st.integers(1, 9), max_size=30),
    st.booleans(),
)
def test_events_in_batches_give_the_state_and_the_rows_that_they_give_singly(
    story: list[tuple[Event, int]], sizes: list[int], sets: bool
) -> None:
    items = [
        Envelope(event=event, event_id=f"e{n}", source=f"s.{n % 2}", seq=n, time_ns=at * SECOND)
        for n, (event, at) in enumerate(story, 1)
    ]
    singly, batched, state = ViewModel(sets=sets), ViewModel(sets=sets), State()
    begin = 0
    for size in (*sizes, len(items)):
        batch = items[begin : begin + size]
        begin += size
        for item in batch:
            singly.apply(item)
            state.apply(item)
        batched.apply_all(batch)
        assert batched.state == singly.state
        assert sets or batched.state == state
        assert batched.take(0) == singly.take(0)
    assert batched.whole(0) == singly.whole(0)


def test_a_decision_names_its_cause_its_actions_and_its_rules() -> None:
    site = Site()
    site.tell(events.StagingStarted(job_id="7"))
    plan = events.PathPlan(separated=True, cores={"mpi": ("core1",)})
    site.tell(
        events.Decided(
            policy="link-separation",
            cause_id="e1",
            actions=(encode_action(events.AssignPaths(plan=plan)),),
            reason="why",
        )
    )
    site.tell(events.PathsChanged(plan=plan, cause_id="e1", messages=12, switches=4, install_ns=2_000_000))
    row = site.row("decisions", "e2")
    assert row["cause"] == {"type": "StagingStarted", "text": "job 7 in"}
    assert row["actions"] == ["paths: classes apart, mpi over core1"] and row["reason"] == "why"
    assert row["rules"] == {"messages": 12, "switches": 4, "ms": 2.0}
    site.tell(events.PathsRefused(cause_id="e1", switch="edge1", reason="table full"))
    assert site.row("decisions", "e2")["refused"] == "edge1: table full"


def test_a_decision_that_overtakes_its_cause_names_it_once_it_is_there() -> None:
    site = Site()
    site.tell(events.Decided(policy="link-separation", cause_id="e2", actions=()))
    assert "cause" not in site.row("decisions", "e1")
    site.frame()
    site.tell(events.StagingStarted(job_id="7"))
    assert site.row("decisions", "e1")["cause"]["text"] == "job 7 in"


def test_a_killed_controller_is_gone_until_it_comes_back() -> None:
    site = Site()
    site.model.publisher("site.a1", True, 0)
    site.tell(events.TopologyChanged(topology=fat_tree(4)), source="site.a1")
    assert site.row("publishers", "site") == {"role": "controller", "present": 1, "since": 0}
    site.model.publisher("site.a1", False, 5 * SECOND)
    assert site.row("publishers", "site") == {"role": "controller", "present": 0, "since": 5000}
    site.model.publisher("site.b2", True, 9 * SECOND)
    assert site.row("publishers", "site")["present"] == 1
    assert site.model.controllers == {"site"}


def test_a_snapshot_replaces_what_was_missed() -> None:
    site = Site()
    site.tell(
        events.JobStarted(job_id="1", nodes=("c1",)),
        events.FlowStarted(flow_id="n1:1", traffic="io", engine="copy"),
    )
    state = State()
    state.apply(
        Envelope(event=events.JobStarted(job_id="2", nodes=("c2",)), event_id="x", time_ns=9 * SECOND)
    )
    site.model.adopt(state, {"site.a1": {"Decided": 3}}.items())
    assert site.row("jobs", "1")["ended"]
    assert site.row("jobs", "2")["phases"] == [["run", 9000, None]]
    assert site.row("flows", "n1:1")["outcome"] == "lost"
    assert site.model.controllers == {"site"}


@pytest.mark.parametrize("kept", [1, 3])
def test_deltas_merged_into_a_whole_frame_give_the_frame_of_that_time(kept: int) -> None:
    topology = fat_tree(4)
    site = Site()
    frames: list[bytes] = []
    link = topology.switch_links[0]
    told: list[Event] = [events.TopologyChanged(topology=topology)]
    for n in range(40):
        told += [
            events.JobStarted(job_id=f"{n % 5}", nodes=("h1",)),
            use((link.a, link.a_port, {"mpi": n * 1000})),
        ]
        told += [
            events.FlowStarted(flow_id=f"n1:{n}", traffic="io", engine="copy"),
            events.JobFinished(job_id=f"{n % 3}"),
        ]
        told += [events.FlowFinished(flow_id=f"n1:{n - 2}")] if n > 2 else []
    base: Frame | None = None
    for n, event in enumerate(told):
        site.tell(event)
        if n % kept == 0:
            frames.append(encode(site.frame()))
            if base is None:
                base = decode(encode(site.model.whole(site.count * SECOND)))
    assert base is not None
    for data in frames[1:]:
        merge(base, decode(data))
        merge(base, Frame(seq=base.seq, t=base.t))  # one that says nothing
    final = site.model.whole(base.t * 1_000_000)
    again = decode(encode(final))
    for section in ("jobs", "flows", "links"):
        if kept == 1:
            assert base.set.get(section) == again.set.get(section)


def test_what_is_shown_is_bounded_however_much_arrives() -> None:
    site = Site()
    for n in range(6000):
        site.tell(
            events.JobStarted(job_id=f"j{n}", nodes=()),
            events.FlowStarted(flow_id=f"a:{n}", traffic="io", engine="copy"),
        )
        site.model.publisher(f"p{n}.x", True, n)
        if n % 2:
            site.tell(events.JobFinished(job_id=f"j{n}"), events.FlowFinished(flow_id=f"a:{n}"))
    frame = site.model.whole(0)
    assert len(frame.set["jobs"]) <= 2000 and len(frame.set["flows"]) <= 600 and len(frame.events) <= 200
    assert len(frame.set["publishers"]) <= 1200
    assert site.model.counts["jobs"] >= 6000 and len(encode(frame)) < 2 << 20


def test_hostile_names_stay_data() -> None:
    site = Site()
    name = '</script><img src=x onerror="alert(1)">\u202e'.replace("\u202e", "")
    site.tell(events.JobStarted(job_id=name, nodes=(name,), user=name))
    data = encode(site.frame())
    assert json.loads(data)["set"]["jobs"][name]["nodes"] == [name] and b"\n" not in data


def test_an_action_that_cannot_be_read_is_quoted() -> None:
    from waystage.view.describe import action_text

    assert action_text(b'{"type":"Novel"}').startswith("unreadable action")
    assert decode_action(encode_action(events.Pause(flow_id="a:1"))) == events.Pause(flow_id="a:1")
    assert (
        action_text(encode_action(events.SetRate(flow_id="a:1", rate_bps=10**8))) == "rate of a:1: 100 Mbit/s"
    )
