"""The job database: what a scheduler's notes, in any order, amount to."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.events import (
    Envelope,
    Event,
    HostSeen,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    StagingFinished,
    StagingStarted,
)
from waystage.jobs.database import DatabaseError, JobDatabase
from waystage.state import State


def at(time_ns: int, event: Event) -> Envelope:
    return Envelope(event=event, event_id=f"{time_ns}-{type(event).__name__}", time_ns=time_ns)


WHOLE_JOB = [
    at(10, JobStarted(job_id="7", nodes=("c1", "c4"))),
    at(20, StagingStarted(job_id="7", direction="in", bytes=99)),
    at(30, StagingFinished(job_id="7", direction="in")),
    at(40, IoStarted(job_id="7")),
    at(50, IoFinished(job_id="7")),
    at(60, StagingStarted(job_id="7", direction="out")),
    at(70, StagingFinished(job_id="7", direction="out")),
    at(80, JobFinished(job_id="7")),
]


def test_a_job_is_followed_from_start_to_end() -> None:
    with JobDatabase(":memory:") as database:
        for item in WHOLE_JOB[:2]:
            database.record(item)
        row = database.job("7")
        assert row is not None
        assert (row.nodes, row.running, row.staging) == (("c1", "c4"), True, True)
        assert row.activities["stage-in"].bytes == 99
        for item in WHOLE_JOB[2:]:
            database.record(item)
        row = database.job("7")
        assert row is not None
        assert not (row.running or row.staging or row.io)
        assert row.activities["run"].started_ns == 10 and row.activities["run"].ended_ns == 80
        assert database.job("8") is None


def test_notifications_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "controller" / "jobs.db"
    with JobDatabase(path) as database:
        database.record(WHOLE_JOB[0])
        before = database.jobs()
    with JobDatabase(path) as database:
        assert database.jobs() == before
        assert before[0].running


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(WHOLE_JOB), repeats=st.lists(st.sampled_from(WHOLE_JOB), max_size=5))
def test_any_order_and_any_repetition_end_in_the_same_rows(
    order: list[Envelope], repeats: list[Envelope]
) -> None:
    with JobDatabase(":memory:") as expected, JobDatabase(":memory:") as database:
        for item in WHOLE_JOB:
            expected.record(item)
        for item in [*order, *repeats]:
            database.record(item)
        assert database.jobs() == expected.jobs()


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(
        st.sampled_from(
            [
                JobStarted(job_id="a", nodes=("c1",)),
                JobFinished(job_id="a"),
                StagingStarted(job_id="a", direction="in"),
                StagingFinished(job_id="a", direction="in"),
                StagingStarted(job_id="a", direction="out"),
                StagingFinished(job_id="a", direction="out"),
            ]
        ),
        max_size=12,
    ),
    seed=st.integers(0, 2**16),
)
def test_database_and_state_agree_on_what_is_running_and_staging(events: list[Event], seed: int) -> None:
    items = [at(10 * (n + 1), event) for n, event in enumerate(events)]
    # Events may overtake each other by one place: two hooks on two hosts.
    draw = random.Random(seed)
    for n in range(len(items) - 1):
        if draw.random() < 0.3:
            items[n], items[n + 1] = items[n + 1], items[n]
    state = State()
    with JobDatabase(":memory:") as database:
        for item in items:
            state.apply(item)
            database.record(item)
        row = database.job("a")
        assert (row is not None and row.running) == bool(state.running_jobs)
        assert (row is not None and row.staging) == bool(state.staging_jobs)


def test_an_end_of_the_job_ends_its_io() -> None:
    with JobDatabase(":memory:") as database:
        for item in (WHOLE_JOB[0], WHOLE_JOB[3], WHOLE_JOB[7]):
            database.record(item)
        row = database.job("7")
        assert row is not None and not row.io


def test_events_about_other_things_leave_no_row() -> None:
    with JobDatabase(":memory:") as database:
        database.record(at(1, HostSeen(host="c1", switch="s", port=1, mac="02:00:00:00:00:01")))
        assert database.jobs() == []


def test_old_jobs_are_forgotten_and_running_ones_never() -> None:
    with JobDatabase(":memory:") as database:
        for item in WHOLE_JOB:
            database.record(item)
        database.record(at(5, JobStarted(job_id="still", nodes=("c2",))))
        assert database.prune(before_ns=1000) == 1
        assert [row.job_id for row in database.jobs()] == ["still"]


def test_many_threads_may_take_notes_at_once(tmp_path: Path) -> None:
    with JobDatabase(tmp_path / "jobs.db") as database:

        def note(name: str) -> None:
            for n in range(50):
                database.record(at(n + 1, JobStarted(job_id=f"{name}-{n}", nodes=("c1",))))

        threads = [threading.Thread(target=note, args=(f"t{k}",)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(database.jobs()) == 200


def test_a_file_that_is_no_database_is_named_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    notes = "these are notes of another kind, long enough to be no header " * 20
    path.write_text(notes)
    with JobDatabase(path) as database:
        assert database.jobs() == []
    assert "jobs.db is damaged (file is not a database): kept as jobs.db.damaged-" in caplog.text
    assert [kept.read_text() for kept in tmp_path.glob("jobs.db.damaged-*")] == [notes]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseError, match=r"cannot make .*file: .*--state-dir"):
        JobDatabase(tmp_path / "file" / "jobs.db")
