"""A recorded run in the view: as it was, or one sentence why not."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import command, ran
from waystage.experiment.results import ResultError, load_timelines
from waystage.stats import median
from waystage.view.feed import Feed
from waystage.view.recorded import load

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "demo"
    ran(
        command(
            "run", REPOSITORY / "experiments/demo.yaml", "--on", "sim", "--sets", "1", "--out", out, "--quiet"
        )
    ).expect()
    return out


@pytest.fixture(scope="module")
def feed(folder: Path) -> Feed:
    return load(folder)


def copied(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_run_is_shown_from_its_start_to_its_end(feed: Feed, folder: Path) -> None:
    jobs = json.loads((folder / "result.json").read_text())["jobs"]
    begin, end = feed.timeline(100)["span"]
    first, last = (json.loads(feed.at(t) or b"") for t in (begin, end))
    assert not first["set"].get("jobs") or len(first["set"]["jobs"]) < 3
    assert {job["job_id"] for job in jobs} == set(last["set"]["jobs"])
    assert all(row.get("ended") for row in last["set"]["jobs"].values())
    assert [mark["text"] for mark in feed.marks] == [
        "ecmp, set 1",
        "link-separation, set 1",
        "demand-separation, set 1",
    ]


def test_links_show_the_classes_of_that_time(feed: Feed) -> None:
    begin, end = feed.timeline(100)["span"]
    seen = set()
    for t in range(begin, end, 2000):
        for row in json.loads(feed.at(t) or b"")["set"]["links"].values():
            for use in (row.get("ab"), row.get("ba")):
                if use:
                    assert use[0] >= 0.98 * sum(use[1:])
                    seen |= {n for n, value in enumerate(use[1:]) if value}
    assert seen == {0, 1}  # mpi and staging


def test_the_history_of_a_run_shows_each_interval_of_its_counters(feed: Feed, folder: Path) -> None:
    """A separation takes some tenths of a second, in which the rows of links change."""
    samples = load_timelines(folder)
    assert {round(sample.interval_s, 3) for sample in samples} == {0.1}
    first = min(sample.at_s for sample in samples)
    moments = sorted({s.at_s for s in samples if s.at_s < first + 10})
    times = {json.loads(feed.at(round(at * 1e3) + 99) or b"")["t"] for at in moments}
    assert len(times) == len(moments) > 20
    series = feed.timeline(2000)["series"]
    steps = [b - a for a, b in pairwise(series["t"][:100])]
    assert median(steps) <= 200


def test_a_link_on_which_nothing_was_counted_is_shown_as_idle(feed: Feed, folder: Path) -> None:
    samples = [s for s in load_timelines(folder) if s.traffic == "all"]
    moments = sorted({s.at_s for s in samples})
    gap = next(
        a for a, b in pairwise(moments) if b - a > 0.25
    )  # from the end of the first stage-in to the next
    row = json.loads(feed.at(round(gap * 1e3) + 200) or b"")["set"].get("links", {})
    assert not any(link.get("ab") or link.get("ba") for link in row.values())
    for at in moments[:30]:
        links = json.loads(feed.at(round(at * 1e3) + 99) or b"")["set"]["links"]
        busy = {(s.node, s.peer) for s in samples if s.at_s == at}
        assert sum(bool(link.get(way)) for link in links.values() for way in ("ab", "ba")) == len(busy)


def test_every_decision_of_the_run_has_its_cause(feed: Feed) -> None:
    _, end = feed.timeline(100)["span"]
    rows = json.loads(feed.at(end) or b"")["set"]["decisions"].values()
    assert rows and all("cause" in row for row in rows)


@pytest.mark.parametrize("column", ["at_s", "interval_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, 1e300])
def test_times_that_are_none_are_one_sentence(
    folder: Path, tmp_path: Path, column: str, value: float
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = copied(folder, tmp_path)
    table = pq.read_table(copy / "timelines.parquet")
    values = [value, *table.column(column).to_pylist()[1:]]
    at = table.column_names.index(column)
    pq.write_table(table.set_column(at, column, pa.array(values)), copy / "timelines.parquet")
    with pytest.raises(ResultError, match=r"timelines\.parquet: has times that are none"):
        load(copy)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "result.json").write_text("{"),
        lambda folder: (folder / "events.jsonl").write_bytes(b'{"type":"JobStarted"}\n\xff\xfe\n'),
        lambda folder: (folder / "events.jsonl").unlink(),
        lambda folder: (folder / "timelines.parquet").write_bytes(b"PAR1 no"),
        lambda folder: (folder / "result.json").write_text('{"kind":"policies","schema":99}'),
        lambda folder: (folder / "result.json").write_text('{"kind":"novel","schema":2}'),
    ],
    ids=["result", "events", "no-events", "timelines", "newer", "kind"],
)
def test_a_damaged_or_newer_run_is_one_sentence(damage: object, folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, tmp_path)
    damage(copy)  # type: ignore[operator]
    with pytest.raises(ResultError) as caught:
        load(copy)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_refuses_a_folder_without_a_result(tmp_path: Path) -> None:
    found = ran(command("view", tmp_path)).expect(3)
    assert "give the folder that `waystage run` wrote" in found.err


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_damaged_bytes_of_events_never_raise_anything_else(folder: Path, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        copy = copied(folder, Path(name))
        whole = bytearray((copy / "events.jsonl").read_bytes()[:20_000])
        for _ in range(data.draw(st.integers(1, 8))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        (copy / "events.jsonl").write_bytes(bytes(whole))
        try:
            load(copy)
        except ResultError as error:
            assert "events.jsonl:" in str(error)
