"""What `waystage bench backplane` counts as lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import bench_module
from waystage.controllers import Journal
from waystage.events import Envelope, JobStarted


def _started(number: int) -> Envelope:
    return Envelope(event=JobStarted(job_id=f"j{number}", nodes=()), event_id="", source="a", seq=number)


def test_events_that_a_journal_has_let_go_are_not_taken_for_lost(tmp_path: Path) -> None:
    count = bench_module("backplane")._journalled
    journal = Journal(tmp_path / "journal.db", history=2)
    journal.append([(_started(number), number - 1) for number in range(1, 6)])
    journal.close()
    assert count(tmp_path / "journal.db") == {f"j{number}": 1 for number in range(1, 6)}
    journal = Journal(tmp_path / "journal.db", history=2)
    journal.compact(5, b"{}")
    journal.close()
    with pytest.raises(RuntimeError, match="cannot be counted"):
        count(tmp_path / "journal.db")


def test_the_journal_of_a_controller_killed_meanwhile_is_counted_whole(tmp_path: Path) -> None:
    """A controller that is asked to end keeps the last 10,000 events only."""
    found = bench_module("backplane")._lost(tmp_path / "lost", agents=4, kills=1)
    assert (found["lost"], found["doubled"], found["unconfirmed"], found["published"]) == (0, 0, 0, 40)
