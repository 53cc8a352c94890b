"""Notifications: what a scheduler's hook may say, and the answer when it may not."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Waystage
from harness import WAIT_S, command, wait_until
from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import Envelope, Event, EventError, StagingStarted
from waystage.jobs.database import JobDatabase
from waystage.jobs.notify import Notifier
from waystage.state import State


class Site:
    """A publisher with a state and a job database behind it, as a controller has."""

    def __init__(self) -> None:
        self.state = State()
        self.database = JobDatabase(":memory:")
        self.closed = False
        self._clock = 0

    def publish(self, event: Event, *, confirm: bool = False, timeout: float = 5.0) -> Envelope:
        assert confirm, "a notification must not return before it is journalled"
        self._clock += 1
        item = Envelope(event=event, event_id=str(self._clock), time_ns=self._clock)
        self.state.apply(item)
        self.database.record(item)
        return item

    def close(self) -> None:
        self.closed = True


def test_a_job_with_staging_is_seen_from_its_start_to_its_end() -> None:
    site = Site()
    with Notifier(site) as notifier:
        notifier.job_started("17", ["c1", "c4"])
        notifier.staging_started("17", "in", bytes=8)
        assert site.state.staging_jobs == ["17"] and site.state.running_jobs == ["17"]
        notifier.staging_finished("17", "in")
        assert site.state.staging_jobs == []
        notifier.io_started("17")
        assert site.state.io_jobs == ["17"]
        notifier.io_finished("17")
        notifier.job_finished("17")
    assert site.state.jobs == {} and site.closed
    row = site.database.job("17")
    assert row is not None and row.nodes == ("c1", "c4") and not row.running


def test_a_repeated_start_changes_nothing_but_the_nodes_it_names() -> None:
    site = Site()
    notifier = Notifier(site)
    notifier.job_started("17", ["c1"])
    notifier.job_started("17", ["c1"])
    assert site.state.running_jobs == ["17"]
    notifier.job_started("17", ["c2"])
    assert site.state.jobs["17"].nodes == ("c2",)
    notifier.job_finished("17")
    notifier.job_finished("17")
    assert site.state.jobs == {}


def test_ends_of_unknown_jobs_change_nothing() -> None:
    site = Site()
    notifier = Notifier(site)
    notifier.job_finished("ghost")
    notifier.staging_finished("ghost", "out")
    notifier.io_finished("ghost")
    assert site.state.jobs == {}
    notifier.job_started("ghost", ["c1"])  # its later start counts
    assert site.state.running_jobs == ["ghost"]


def test_a_stage_out_outlives_the_job_that_it_belongs_to() -> None:
    site = Site()
    notifier = Notifier(site)
    notifier.job_started("17", ["c1"])
    notifier.staging_started("17", "out")
    notifier.job_finished("17")
    row = site.database.job("17")
    assert site.state.staging_jobs == ["17"]
    assert row is not None and row.staging and not row.running
    notifier.staging_finished("17", "out")
    assert site.state.jobs == {}


BAD_IDS = {"empty": "", "10 kB": "x" * 10_000, "control characters": "17\n\x1b[2J", "null byte": "a\x00b"}


@pytest.mark.parametrize("job_id", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_an_id_that_is_no_id_is_refused_and_nothing_is_sent(job_id: str) -> None:
    site = Site()
    notifier = Notifier(site)
    for call in (
        lambda: notifier.job_started(job_id, ["c1"]),
        lambda: notifier.job_finished(job_id),
        lambda: notifier.staging_started(job_id),
        lambda: notifier.staging_finished(job_id),
        lambda: notifier.io_started(job_id),
        lambda: notifier.io_finished(job_id),
    ):
        with pytest.raises(EventError) as caught:
            call()
        assert len(str(caught.value)) < 200 and str(caught.value).isprintable()
    assert site.state.events == 0


def test_a_job_needs_nodes_and_amounts_are_not_negative() -> None:
    notifier = Notifier(Site())
    with pytest.raises(EventError, match="starts on no node"):
        notifier.job_started("17", [])
    with pytest.raises(EventError, match="node name"):
        notifier.job_started("17", ["c1", "c\t2"])
    with pytest.raises(EventError, match="0 \\(unknown\\) or more"):
        notifier.staging_started("17", bytes=-1)


@given(st.text(max_size=300))
def test_any_text_is_taken_whole_or_refused_in_one_line(job_id: str) -> None:
    site = Site()
    try:
        Notifier(site).job_started(job_id, ["c1"])
    except EventError as error:
        assert "\n" not in str(error)
    else:
        assert site.state.running_jobs == [job_id]


# -- the command line ------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[tuple[str, Backplane]]:
    """A router without a controller's journal behind it."""
    address = f"unixsock-stream/{tmp_path}/b.sock"
    with Backplane.open(BackplaneConfig(listen=(address,), name="site")) as backplane:
        yield address, backplane


@pytest.mark.parametrize("job_id", ["x" * 10_000, "17\n18", "a\x1b[2Jb"], ids=["10 kB", "newline", "escape"])
def test_the_command_refuses_a_bad_id_in_one_printable_sentence(waystage: Waystage, job_id: str) -> None:
    ran = waystage("notify", "job-end", job_id).expect(2)
    assert ran.err.startswith("waystage: error: the job id ") and ran.err.count("\n") == 1
    assert len(ran.err) < 200 and ran.err.strip().isprintable()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job-start", "17"), "--nodes"),
        (("job-start", "17", "--nodes", "c[3-1]"), "runs backwards"),
        (("staging-start", "17", "--direction", "sideways"), "sideways"),
        (("staging-start", "17", "--bytes", "lots"), "no amount of bytes"),
    ],
)
def test_the_command_names_the_option_that_is_wrong(
    waystage: Waystage, arguments: tuple[str, ...], words: str
) -> None:
    ran = waystage("notify", *arguments)
    assert ran.code == 2 and words in ran.err


def test_a_notification_that_no_controller_hears_fails_and_says_where_it_went(
    waystage: Waystage, tmp_path: Path
) -> None:
    nowhere = f"unixsock-stream/{tmp_path}/absent.sock"
    ran = waystage("notify", "job-end", "17", "--endpoint", nowhere).expect(1)
    assert "absent.sock" in ran.err and ran.err.count("\n") == 1


def test_a_notification_without_a_journal_is_published_yet_reported_as_not_confirmed(
    waystage: Waystage, endpoint: tuple[str, Backplane]
) -> None:
    address, backplane = endpoint
    box = backplane.watch(StagingStarted)
    ran = waystage(
        "notify", "staging-start", "17", "--direction", "out", "--bytes", "8 MB", WAYSTAGE_ENDPOINT=address
    )
    assert ran.code == 1 and "17" not in ran.out
    item = box.get(WAIT_S)
    assert item is not None and item.event == StagingStarted(job_id="17", direction="out", bytes=8_000_000)


def test_a_host_that_the_topology_lacks_is_refused(waystage: Waystage, tmp_path: Path) -> None:
    address = f"unixsock-stream/{tmp_path}/site.sock"
    running = subprocess.Popen(
        command("controller", "--listen", address, "--topology", "paper", "--state-dir", tmp_path / "state"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert running.stdout is not None and "ready" in running.stdout.readline()
        start = ("notify", "job-start", "17", "--endpoint", address, "--nodes")
        # Where a busy controller is late with its topology, any node is accepted.

        def is_refused() -> bool:
            refused = waystage(*start, "c1,c99")
            return refused.code == 3 and "no host c99" in refused.err and "c1, c2" in refused.err

        wait_until(is_refused, what="the refusal of a host that is not there")
        # A repeated start changes nothing, and a busy controller may be late with its answer.
        wait_until(lambda: waystage(*start, "c1,c2").code == 0)
        jobs = waystage("state", "show", "--json", "--endpoint", address).json["jobs"]
        assert list(jobs["17"]["nodes"]) == ["c1", "c2"]
    finally:
        running.terminate()
        running.communicate()


def test_following_events_ends_at_its_timeout_while_others_arrive(
    waystage: Waystage, endpoint: tuple[str, Backplane]
) -> None:
    address, backplane = endpoint
    done = threading.Event()

    def publish() -> None:
        while not done.wait(0.05):
            backplane.publish(StagingStarted(job_id="17"))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(publish)
        try:
            followed = waystage("events", "--timeout", "8", "--endpoint", address).expect(0)
            assert "StagingStarted" in followed.out
            too_few = waystage(
                "events", "--count", "1", "--type", "JobStarted", "--timeout", "0.5", "--endpoint", address
            )
            assert too_few.code == 75 and "0 of 1 events" in too_few.err
        finally:
            done.set()


def patient(address: str) -> Notifier:
    """A notifier that waits for a controller on a busy machine."""
    return Notifier(Backplane.open(BackplaneConfig(connect=(address,))), patience_s=WAIT_S)


def test_a_controller_keeps_the_job_database_across_its_own_death(tmp_path: Path) -> None:
    address = f"unixsock-stream/{tmp_path}/site.sock"
    config = tmp_path / "site.yaml"
    config.write_text(f"state_dir: {tmp_path}/state\nbackplane: {{listen: ['{address}']}}\n")

    def controller() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command("controller", "--config", str(config)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        return process

    def row(job_id: str, *, running: bool) -> bool:
        with JobDatabase(tmp_path / "state" / "jobs.db") as database:
            found = database.job(job_id)
        return found is not None and found.running == running

    def within(seconds: float, holds: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not holds() and time.monotonic() < deadline:
            time.sleep(0.05)
        return holds()

    first = controller()
    try:
        with patient(address) as notifier:
            notifier.job_started("17", ["c1", "c4"])
        assert within(WAIT_S, lambda: row("17", running=True))
    finally:
        first.kill()
        first.communicate()
    second = controller()
    try:
        assert row("17", running=True)
        with patient(address) as notifier:
            notifier.job_finished("17")
        assert within(WAIT_S, lambda: row("17", running=False))
    finally:
        second.terminate()
        second.communicate()
