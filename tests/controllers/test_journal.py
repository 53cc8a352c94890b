"""The journal: nothing twice, nothing lost, an equal state after a restart, damage survived."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.controllers.engine import PolicyEngine
from waystage.controllers.journal import Journal, JournalError
from waystage.events import (
    Action,
    AssignPaths,
    Envelope,
    Event,
    JobFinished,
    JobStarted,
    PathPlan,
    StagingFinished,
    StagingStarted,
)
from waystage.state import State


class CountsStaging:
    """A plan for each number of jobs that stage."""

    name = "counts-staging"

    def __call__(self, event: Event, state: State) -> list[Action]:
        plan = PathPlan(seed=len(state.staging_jobs))
        return [] if plan == state.requested else [AssignPaths(plan=plan)]


def _item(number: int, event: Event | None = None, source: str = "s") -> Envelope:
    event = event or JobStarted(job_id=str(number), nodes=("c1",))
    return Envelope(event=event, event_id=f"{source}-{number}", source=source, seq=number, time_ns=number)


def test_each_event_is_accepted_once_by_number_and_by_id(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    assert [e.n for e in journal.append([(_item(1), 0), (_item(2), 1), (_item(2), 1)])] == [1, 2]
    assert journal.append([(_item(1), 0)]) == []
    again = msgspec.structs.replace(_item(1), source="relay", seq=1)
    assert journal.append([(again, 0)]) == [], "the same event, forwarded by a relay that was restarted"
    journal.close()
    journal = Journal(tmp_path / "j.db")
    assert journal.append([(_item(2), 1)]) == []
    assert [e.envelope.seq for e in journal.append([(_item(3), 2)])] == [3]
    assert journal.cursors() == {"s": {"JobStarted": 3}, "relay": {"JobStarted": 1}}
    journal.close()


EVENTS = st.one_of(
    st.builds(JobStarted, job_id=st.sampled_from("abc"), nodes=st.just(("c1",))),
    st.builds(JobFinished, job_id=st.sampled_from("abc")),
    st.builds(StagingStarted, job_id=st.sampled_from("abc"), direction=st.sampled_from(("in", "out"))),
    st.builds(StagingFinished, job_id=st.sampled_from("abc"), direction=st.sampled_from(("in", "out"))),
)


@settings(max_examples=40)
@given(
    events=st.lists(EVENTS, max_size=30),
    crash=st.integers(0, 30),
    record=st.integers(1, 5),
    compact=st.booleans(),
)
def test_restoring_gives_the_state_and_decisions_of_one_that_never_stopped(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], crash: int, record: int, compact: bool
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.db"
    items = [_item(n, event) for n, event in enumerate(events, 1)]
    unbroken = PolicyEngine(CountsStaging())
    wanted = [unbroken.handle(item) for item in items]

    journal = Journal(path, sync="normal")
    engine = PolicyEngine(CountsStaging())
    decisions: dict[int, tuple[Action, ...]] = {}
    entries = journal.append([(item, None) for item in items])
    for entry in entries[:crash]:
        actions = engine.handle(entry.envelope)
        if actions:
            decisions[entry.n] = tuple(actions)
        if entry.n % record == 0:
            journal.record(entry.n, decisions)
            decisions = {}
            if compact:
                journal.compact(entry.n, engine.state.snapshot())
    journal.close()  # what was decided since the last record is forgotten, as by a crash

    journal = Journal(path, sync="normal")
    restored = journal.restore()
    engine = PolicyEngine(CountsStaging(), State.restore(restored.state) if restored.state else None)
    answers = []
    for entry in restored.entries:
        if entry.n <= restored.processed:
            engine.fold(entry.envelope, restored.decisions.get(entry.n, ()))
        else:
            answers.append(engine.handle(entry.envelope))
    journal.close()
    assert engine.state.difference(unbroken.state) == []
    assert answers == wanted[len(wanted) - len(answers) :], "what was not recorded is decided again, the same"


def test_compaction_bounds_the_file_and_keeps_a_history(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db", sync="normal", compact_after=50, history=10)
    state = State()
    for first in range(1, 400, 20):
        batch = [_item(n) for n in range(first, first + 20)]
        for entry in journal.append([(item, item.seq - 1) for item in batch]):
            state.apply(entry.envelope)
        journal.record(first + 19, {})
        if journal.wants_snapshot:
            journal.compact(first + 19, state.snapshot())
    kept = [item.seq for item in journal.events()]
    assert len(kept) <= 70 and kept[-1] == 400
    items, missed = journal.replay("s", "*", lambda name, seq, time_ns: seq > 300)
    assert missed == {"JobStarted": kept[0] - 1}, "a subscriber that needs older ones is notified"
    assert [previous + 1 for _, previous, _ in items] == kept
    restored = journal.restore()
    assert restored.state is not None
    back = State.restore(restored.state)
    for entry in restored.entries:
        back.apply(entry.envelope)
    assert back.difference(state) == []
    journal.close()


def _fill(path: Path, count: int) -> None:
    """A journal whose log was never merged into the database, as after kill -9."""
    journal = Journal(path)
    journal.append([(_item(1), 0)])
    for n in range(2, count + 1):
        journal.append([(_item(n), n - 1)])
    # A copy, since closing would merge the log.
    for suffix in ("", "-wal"):
        Path(f"{path}{suffix}.copy").write_bytes(Path(f"{path}{suffix}").read_bytes())
    journal.close()
    for suffix in ("", "-wal"):
        Path(f"{path}{suffix}.copy").replace(f"{path}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)


@pytest.mark.parametrize("cut", [1, 100, 5_000])
def test_a_truncated_tail_loses_only_the_last_batches(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j.db"
    _fill(path, 20)
    log = Path(f"{path}-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    journal = Journal(path)
    kept = [e.envelope.seq for e in journal.restore().entries]
    assert kept == list(range(1, len(kept) + 1)) and 0 < len(kept) < 20
    assert journal.cursors() == {"s": {"JobStarted": len(kept)}}, "publishers are asked for the rest"
    assert [e.envelope.seq for e in journal.append([(_item(len(kept) + 1), len(kept))])] == [len(kept) + 1]
    journal.close()


def test_a_corrupt_tail_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    _fill(path, 20)
    log = Path(f"{path}-wal")
    data = bytearray(log.read_bytes())
    data[-3000:-2900] = b"\xff" * 100
    log.write_bytes(bytes(data))
    journal = Journal(path)
    kept = [e.envelope.seq for e in journal.restore().entries]
    assert kept == list(range(1, len(kept) + 1)) and 0 < len(kept) < 20
    journal.close()


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "j.db"
    path.write_bytes(b"this is no database at all, but long enough to be looked at" * 100)
    journal = Journal(path)
    assert journal.restore().entries == []
    assert len(journal.append([(_item(1), 0)])) == 1
    journal.close()
    aside = list(tmp_path.glob("j.db.damaged-*"))
    assert len(aside) == 1 and aside[0].read_bytes().startswith(b"this is no database")
    assert "damaged" in caplog.text


def test_an_entry_that_cannot_be_read_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "j.db"
    journal = Journal(path)
    journal.append([(_item(n), n - 1) for n in range(1, 4)])
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE event SET data = X'6e6f' WHERE n = 2")
    db.close()
    journal = Journal(path)
    assert [e.n for e in journal.restore().entries] == [1, 3]
    assert "entry 2" in caplog.text
    journal.close()


def test_a_journal_belongs_to_one_controller(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j.db")
    with pytest.raises(JournalError, match="another controller"):
        Journal(tmp_path / "j.db")
    first.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="state-dir"):
        Journal(tmp_path / "file" / "j.db")
