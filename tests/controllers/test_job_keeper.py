"""The job database has every event that the controller has journalled, also those of publishers that have ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from controller_support import running_site
from harness import WAIT_S
from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import Envelope, JobStarted
from waystage.jobs.database import DatabaseError, JobDatabase

NUMBERS = [str(number) for number in range(5)]


def _notify(folder: Path) -> None:
    """Each event from a publisher that ends when it is journalled, as `waystage notify` does."""
    for number in NUMBERS:
        config = BackplaneConfig(name=f"notify{number}", connect=(f"unixsock-stream/{folder}/b.sock",))
        with Backplane.open(config) as publisher:
            publisher.publish(JobStarted(job_id=number, nodes=("c1",)), confirm=True, timeout=WAIT_S)


def _jobs(folder: Path) -> list[str]:
    with JobDatabase(folder / "state" / "jobs.db") as jobs:
        return [row.job_id for row in jobs.jobs()]


def test_what_has_arrived_is_recorded_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JobDatabase.record

    def slow(self: JobDatabase, item: Envelope) -> None:
        time.sleep(0.5)
        record(self, item)

    with monkeypatch.context() as busy, running_site(tmp_path):
        busy.setattr(JobDatabase, "record", slow)
        _notify(tmp_path)
    assert _jobs(tmp_path) == NUMBERS


def test_what_was_not_recorded_is_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: JobDatabase, item: Envelope) -> None:
        raise DatabaseError("cannot write: is the disk full?")

    with monkeypatch.context() as full:
        full.setattr(JobDatabase, "record", refuse)
        with running_site(tmp_path):
            _notify(tmp_path)
    assert _jobs(tmp_path) == []
    with running_site(tmp_path):
        pass
    assert _jobs(tmp_path) == NUMBERS


def test_an_event_whose_callback_does_not_end_comes_again(tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def callback(item: Envelope) -> None:
        begun.set()
        goes_on.wait(WAIT_S)

    with Backplane.open() as backplane:
        told = backplane.subscribe("JobStarted", callback, durable="reader", state_dir=tmp_path)
        backplane.publish(JobStarted(job_id="1", nodes=()))
        assert begun.wait(WAIT_S)
        told.close()
        with backplane.subscribe("JobStarted", durable="reader", state_dir=tmp_path) as again:
            item = again.get(WAIT_S)
            assert item is not None and item.event == JobStarted(job_id="1", nodes=())
        goes_on.set()
