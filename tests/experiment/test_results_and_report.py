"""Results keep what was measured, and the report shows it without a request to anywhere."""

from __future__ import annotations

import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waystage.experiment import figures, results
from waystage.experiment.drawing import CLASS_COLOURS, COLOURS, STEP_COLOURS, WAITING_COLOUR
from waystage.experiment.loading import load
from waystage.experiment.report import render, write_report
from waystage.experiment.results import JobRecord, ResultError, RunResult, SwitchOver
from waystage.experiment.schema import Experiment, Jobs, PolicyChoice
from waystage.experiment.summary import summarise, table_rows
from waystage.experiment.timelines import PortSample, Timelines
from waystage.experiment.verdict import verdict

POLICIES = ("ecmp", "link-separation")


def job(policy: str, number: int, index: int, staging: float, compute: float, **more: object) -> JobRecord:
    start = index * 3.0
    values: dict[str, object] = {
        "policy": policy,
        "set": number,
        "index": index,
        "job_id": f"{policy}-{number}-{index}",
        "nodes": ("c1", "c4", "c2"),
        "started_at_s": start,
        "stage_in_s": staging / 2,
        "compute_s": compute,
        "stage_out_s": staging / 2,
        "ended_at_s": start + staging + compute,
    }
    return JobRecord(**(values | more))  # type: ignore[arg-type]


def made_up(sets: int = 10, jobs: int = 2) -> RunResult:
    """Separation halves staging in every set but the last, where it makes everything slower."""
    draw = random.Random(1)
    experiment = Experiment(
        name="made-up",
        description="bold <b>",
        topology="paper",
        policies=tuple(PolicyChoice(name=p) for p in POLICIES),
        jobs=Jobs(count=jobs, nodes=3),
        sets=sets,
    )
    result = RunResult(name=experiment.name, world="lab", experiment=experiment)
    for number in range(sets):
        for index in range(jobs):
            noise = draw.uniform(0, 0.2)
            worse = 4.0 if number == sets - 1 else 0.0
            result.jobs.append(job("ecmp", number, index, 2.0 + noise, 6.0))
            result.jobs.append(job("link-separation", number, index, 1.0 + noise + worse, 5.7))
        for to, total in (("on", 20.0), ("off", 10.0)):
            result.switch_overs.append(
                SwitchOver(
                    policy="link-separation",
                    set=number,
                    at_s=1.0,
                    to=to,  # type: ignore[arg-type]
                    total_ms=total,
                    processor_ms=1.0,
                    planner_ms=2.0,
                    install_ms=5.0,
                )
            )
    return result


def samples() -> list[PortSample]:
    return [
        PortSample(
            policy=policy,
            set=0,
            at_s=t,
            interval_s=1.0,
            node=node,
            port=1,
            peer="edge1",
            traffic=c,
            bytes=n * 10**6,
        )
        for policy in POLICIES
        for node in ("core1", "core2")
        for t in (1.0, 2.0, 3.0)
        for c, n in (("mpi", 8), ("staging", 3), ("all", 11))
    ]


def test_reductions_are_paired_by_set_and_counted() -> None:
    summary = summarise(made_up())
    (comparison,) = summary.comparisons
    assert comparison.policy == "link-separation" and comparison.baseline == "ecmp"
    assert math.isclose(comparison.improved_share.value, 0.9)
    assert math.isclose(comparison.reduction_pct["computation"].value, 5.0, abs_tol=1e-9)
    staging = comparison.reduction_pct["staging"]
    assert staging.low is not None and staging.high is not None
    assert staging.low < staging.value < staging.high
    assert summary.times_s["ecmp"]["computation"].value == 6.0


def test_a_set_with_a_failed_job_is_compared_with_nothing() -> None:
    result = made_up()
    result.jobs.append(job("ecmp", 0, 0, 500.0, 500.0))
    del result.jobs[0]
    result.jobs[-1] = job("ecmp", 0, 0, 500.0, 500.0, status="failed", cause="it crashed")
    summary = summarise(result)
    assert summary.comparisons[0].sets == 9
    assert summary.failed["ecmp"] == 1
    assert summary.times_s["ecmp"]["job"].value < 10


def test_a_run_without_a_baseline_or_a_whole_set_is_summarised_all_the_same() -> None:
    result = made_up(sets=1, jobs=1)
    assert summarise(result).comparisons[0].reduction_pct["job"].low is None
    result.jobs.clear()
    result.switch_overs.clear()
    summary = summarise(result)
    assert summary.comparisons == [] and summary.times_s == {}
    assert "made-up" in render(result, summary, [])


def test_the_table_sets_the_papers_numbers_beside_ours() -> None:
    result = made_up()
    rows = table_rows(result, summarise(result))
    by_name = {(row["quantity"], row["policy"]): row for row in rows}
    assert by_name["staging time against ecmp", "link-separation"]["paper"] == "-22.0 %"
    assert by_name["staging time against ecmp", "link-separation"]["ours"].startswith("-")
    assert by_name["job sets improved", "link-separation"]["ours"] == "9 of 10"
    assert by_name["paths OFF->ON, ms", "link-separation"]["paper"] == "2200"


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    result = made_up()
    results.save(tmp_path, result, samples(), [b'{"type":"JobStarted"}'])
    assert results.load(tmp_path) == result
    assert results.load_timelines(tmp_path) == samples()
    assert (tmp_path / "events.jsonl").read_text().count("\n") == 1
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("{", "no result"), ('{"schema": 99}', "newer"), ('{"schema": 1}', "no result")],
)
def test_a_folder_without_a_readable_result_is_refused(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(ResultError, match=words):
        results.load(tmp_path)


def test_samples_are_read_as_a_sequence_and_by_their_fields(tmp_path: Path) -> None:
    results.save(tmp_path, made_up(), samples(), [])
    found = results.load_timelines(tmp_path)
    assert len(found) == len(samples()) and found[-1] == samples()[-1] and found[3:9:2] == samples()[3:9:2]
    with pytest.raises(IndexError):
        found[len(found)]
    assert found.where(node="core2", at_s=2.0) == [
        s for s in samples() if s.node == "core2" and s.at_s == 2.0
    ]
    assert found.distinct("traffic") == ["mpi", "staging", "all"]


def test_a_timeline_file_of_another_kind_is_named(tmp_path: Path) -> None:
    columns = {name: [getattr(s, name) for s in samples()] for name in PortSample.__struct_fields__}
    wrong = {
        "missing": {name: column for name, column in columns.items() if name != "port"},
        "not of string": columns | {"node": columns["port"]},
        "without a value": columns | {"bytes": [None, *columns["bytes"][1:]]},
        "times that are none": columns | {"at_s": [math.nan, *columns["at_s"][1:]]},
    }
    for words, table in wrong.items():
        pq.write_table(pa.table(table), tmp_path / "timelines.parquet")
        with pytest.raises(ResultError, match=words):
            results.load_timelines(tmp_path)
    older = {name: column for name, column in columns.items() if name != "core"}
    pq.write_table(pa.table(older), tmp_path / "timelines.parquet")
    assert results.load_timelines(tmp_path) == samples()


def test_a_broken_timeline_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "timelines.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ResultError, match=r"timelines\.parquet"):
        results.load_timelines(tmp_path)


class _Resources(HTMLParser):
    """Collects what a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.drawings = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.drawings += tag == "svg"
        if tag in ("script", "link", "iframe", "img", "object"):
            self.fetched.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.fetched.append(value)


def test_the_report_is_whole_in_itself_and_draws_each_figure(tmp_path: Path) -> None:
    result = made_up()
    result.invalid.append("short of CPU & <wrong>")
    results.save(tmp_path, result, samples(), [])
    page = write_report(tmp_path, result).read_text()
    parser = _Resources()
    parser.feed(page)
    assert parser.fetched == []
    assert not re.search(r"url\((?!#)|@import", page)
    # Fig. 11, Fig. 12, jobs, loads of links, a timeline per policy, Fig. 14.
    assert parser.drawings == 7
    assert "short of CPU &amp; &lt;wrong&gt;" in page
    assert "bold &lt;b&gt;" in page


def test_the_same_run_gives_the_same_page() -> None:
    result = made_up()
    assert render(result, summarise(result), samples()) == render(result, summarise(result), samples())


# -- timelines


def drawn(result: RunResult, found: list[PortSample], policy: str) -> str:
    drawing = figures.port_timelines(result, Timelines.of(found), policy, 0)
    assert drawing is not None
    return drawing


def test_a_timeline_marks_the_moments_at_which_paths_were_separated_and_shared_again() -> None:
    result = made_up()
    separated = drawn(result, samples(), "link-separation")
    assert separated.count(">paths separated<") == separated.count(">paths shared again<") == 1
    assert "paths separated" not in drawn(result, samples(), "ecmp")
    early = drawn(result, samples(), "link-separation")
    moved = [msgspec.structs.replace(over, at_s=over.at_s + 0.004) for over in result.switch_overs]
    result.switch_overs[:] = moved
    assert drawn(result, samples(), "link-separation") != early, "it does not depend on the bins"


def test_of_many_ports_those_that_sent_most_are_drawn() -> None:
    result = made_up()
    one = next(s for s in samples() if s.core and s.policy == "ecmp")
    many = [msgspec.structs.replace(one, node=f"core{n}", bytes=1000 * (n % 200)) for n in range(1, 201)]
    drawing = drawn(result, many, "ecmp")
    assert drawing.count(">port ") == figures.MOST_PORTS
    assert "on core199," in drawing and "on core168," in drawing and "on core167," not in drawing


def test_bins_of_a_timeline_are_readings_and_of_a_long_set_as_many_as_can_be_seen() -> None:
    def bins(readings: int) -> figures._Bins:
        at_s = np.repeat(np.arange(1.0, readings + 1), 2)  # of two ports each
        return figures._Bins.of(at_s, np.ones_like(at_s))

    short = bins(24)
    assert short.ends_s.tolist() == short.at_s.tolist() == list(range(1, 25))
    assert short.lengths_s.tolist() == [1.0] * 24
    long = bins(10_000)
    assert figures.MOST_BINS / 2 <= len(long.ends_s) <= figures.MOST_BINS
    assert long.lengths_s.sum() == long.ends_s[-1] == 10_000
    ends, lengths = long.ends_s[long.numbers], long.lengths_s[long.numbers]
    assert ((long.at_s <= ends) & (ends < long.at_s + lengths)).all()


def test_a_timeline_shows_the_mean_rate_of_each_bin() -> None:
    one = next(s for s in samples() if s.core and s.policy == "ecmp" and s.traffic != "all")
    second = [
        msgspec.structs.replace(one, at_s=float(at), interval_s=1.0, bytes=125_000 * at) for at in (1, 2)
    ]
    found = Timelines.of(second)
    bins = figures._Bins.of(found.numbers("at_s"), found.numbers("interval_s"))
    assert bins.mbps(found).tolist() == [1.0, 2.0]
    half = msgspec.structs.replace(
        bins, numbers=np.array([0, 0]), ends_s=np.array([2.0]), lengths_s=np.array([2.0])
    )
    assert half.mbps(found).tolist() == [1.5]


# -- the verdict, and the order of the page


def test_the_verdict_states_difference_uncertainty_and_validity() -> None:
    clear = made_up()
    for job_ in [job_ for job_ in clear.jobs if job_.set == 9]:
        clear.jobs.remove(job_)
    said = verdict(clear, summarise(clear))
    assert said.startswith("Against ecmp, link-separation shortens the mean job time by 16.")
    assert "95 % interval of 9 sets: 1" in said and "9 of 9 sets are faster; the run is valid." in said
    unclear = verdict(made_up(), summarise(made_up()))
    assert "shows no clear difference" in unclear and "95 % interval of 10 sets: -" in unclear


@pytest.mark.parametrize(
    ("sets", "words"),
    [(1, "(one set: no interval); there is one set"), (2, "(range of 2 sets:"), (4, "(range of 4 sets:")],
)
def test_few_sets_are_no_interval(sets: int, words: str) -> None:
    said = verdict(made_up(sets), summarise(made_up(sets)))
    assert words in said and "95 %" not in said


def test_the_verdict_says_what_makes_a_run_worth_less() -> None:
    result = made_up()
    result.invalid.append("the machine was busy")
    result.interrupted = True
    result.jobs[0] = job("ecmp", 0, 0, 1.0, 1.0, status="failed", cause="it crashed")
    said = verdict(result, summarise(result))
    assert said.endswith(
        "the run is NOT VALID, for the reason below, and it was interrupted, and 1 job has failed."
    )
    page = render(result, summarise(result), samples())
    assert page.index("class='verdict bad'") < page.index("class=invalid") < page.index("<svg")


def test_the_page_has_the_verdict_first_and_tables_last() -> None:
    result = made_up()
    page = render(result, summarise(result), samples(), "waystage run experiment.yaml --on lab")
    assert page.index("class='verdict") < page.index("<svg")
    assert page.rindex("<svg") < page.index("<table")
    assert "waystage run experiment.yaml --on lab" in page and "width=device-width" in page
    assert "IEEE Access 8, 2020" in page and "Jobs of set 1" in page and "Mean load of the links" in page


def test_a_result_holds_the_experiment_that_repeats_it(tmp_path: Path) -> None:
    loaded = load(Path(__file__).parents[2] / "experiments/demo.yaml")[0]
    result = RunResult(name=loaded.name, world="sim", experiment=loaded)
    results.save(tmp_path, result, [], [])
    assert load(tmp_path / "experiment.yaml")[0] == loaded
    write_report(tmp_path, result)
    assert "waystage run experiment.yaml --on sim" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_no_colour_has_two_meanings() -> None:
    meanings = [*CLASS_COLOURS.values(), *COLOURS, *STEP_COLOURS, WAITING_COLOUR]
    assert len(meanings) == len(set(meanings))
