"""Files of state, damaged in every way: the controller starts, says what is damaged, keeps it aside, and rebuilds."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from controller_support import running_site
from harness import WAIT_S, command, wait_until
from waystage.backplane import Backplane, BackplaneConfig, Missed
from waystage.backplane.cursors import FileCursors
from waystage.controllers.journal import Journal
from waystage.events import Envelope, JobFinished, JobStarted, StagingStarted
from waystage.jobs.database import JobDatabase
from waystage.state import State

FILES = ("jobs.db", "journal.db", "job-database.cursor")


def _flip(at: int, length: int = 1) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        for n in range(at, min(at + length, len(data))):
            data[n] ^= 0xFF
        path.write_bytes(data)

    return damage


def _overwrite(start: float, length: int, byte: bytes = b"\0") -> Callable[[Path], None]:
    """From a part of the file, at a page's beginning."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        at = int(len(data) * start) // 4096 * 4096
        data[at : at + length] = byte * len(data[at : at + length])
        path.write_bytes(data)

    return damage


def _cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def _sql(script: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with sqlite3.connect(path) as db:
            db.executescript(script)
        db.close()

    return damage


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other_tables(path: Path) -> None:
    path.unlink()
    _sql("CREATE TABLE something (else_ TEXT);")(path)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/file")


def _side_folder(path: Path) -> None:
    Path(f"{path}-wal").unlink(missing_ok=True)
    Path(f"{path}-wal").mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("notes of another kind, long enough to be a header " * 200),
    "random": lambda path: path.write_bytes(os.urandom(20_000)),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "magic": _flip(0),
    "page size": _flip(16, 2),
    "write version": _flip(18),
    "read version": _flip(19),
    "schema format": _flip(44, 4),
    "user version": _flip(60, 4),
    "first page": _overwrite(0.0, 4096),
    "schema": _flip(4000, 96),
    "cut in the first page": lambda path: os.truncate(path, 1000),
    "cut in the middle": _cut(0.5),
    "cut at the end": lambda path: os.truncate(path, path.stat().st_size - 4096),
    "every later page": lambda path: (
        _overwrite(0.0, 0)(path)
        or path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (path.stat().st_size - 4096))
    ),
    "zero page": _overwrite(0.5, 4096),
    "folder": _folder,
    "link": _dangling,
    "folder beside it": _side_folder,
    "other tables": _other_tables,
}

BY_FILE: dict[str, dict[str, Callable[[Path], None]]] = {
    "jobs.db": {
        "newer schema": _sql("PRAGMA user_version = 7;"),
        "no table": _sql("DROP TABLE activities;"),
        "no column": _sql("ALTER TABLE activities DROP COLUMN bytes;"),
        "text for a number": _sql("UPDATE activities SET started_ns = 'yesterday';"),
        "nodes that are none": _sql("UPDATE jobs SET nodes = '{';"),
    },
    "journal.db": {
        "no table": _sql("DROP TABLE seen;"),
        "text for a number": _sql("UPDATE cursor SET seq = 'many';"),
        "text for bytes": _sql("UPDATE event SET data = 'text';"),
        "no number for bytes": _sql("UPDATE snapshot SET state = 7;"),
    },
    "job-database.cursor": {
        "no table": _sql("DROP TABLE about;"),
        "no time": _sql("UPDATE about SET value = 'long ago';"),
        "a time to come": _sql("UPDATE about SET value = '99999999999999999999';"),
        "no row": _sql("DELETE FROM about;"),
        "text for a number": _sql("UPDATE cursor SET seq = 'seven';"),
    },
}

READABLE = (
    "no table",
    "text for a number",
    "write version",
    "user version",
    "folder beside it",
    "cut at the end",
)
"""Damages of the journal that leave its events, or the snapshot of the state, as they are."""

LATER = Envelope(
    event=JobStarted(job_id="later", nodes=("c1",)), event_id="later", source="later", seq=1, time_ns=10**18
)

CASES = [(file, name) for file in FILES for name in (*DAMAGES, *BY_FILE[file])]


def _client(folder: Path) -> Backplane:
    return Backplane.open(BackplaneConfig(name="client", connect=(f"unixsock-stream/{folder}/b.sock",)))


def _jobs(folder: Path) -> dict[str, tuple[bool, bool]]:
    with JobDatabase(folder / "state" / "jobs.db") as jobs:
        return {row.job_id: (row.running, row.staging) for row in jobs.jobs()}


JOBS = {str(n): (True, False) for n in range(120)} | {"done": (False, False), "stages": (True, True)}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a controller left behind that knew of some jobs."""
    folder = tmp_path_factory.mktemp("before")
    with running_site(folder), _client(folder) as client:
        for n in range(120):
            client.publish(JobStarted(job_id=str(n), nodes=tuple(f"node-{n}-{k}" for k in range(8))))
        client.publish(JobStarted(job_id="done", nodes=("c1",)))
        client.publish(JobFinished(job_id="done"))
        client.publish(JobStarted(job_id="stages", nodes=("c1",)))
        client.publish(StagingStarted(job_id="stages", direction="in"), confirm=True, timeout=WAIT_S)
        client.close()
    assert _jobs(folder) == JOBS
    return folder / "state"


def _opened(path: Path, events: list[Envelope]) -> set[str]:
    """Open a file as the controller does, write to it, and give the ids of the jobs that it then knows of."""
    if path.suffix == ".cursor":
        cursors = FileCursors(path.parent, path.stem)
        cursors.save([("later", "JobStarted", 1)])
        assert cursors.lost or cursors.load()
        assert cursors.since_ns == 0 or not cursors.lost, "all that is to be had comes again"
        cursors.close()
        return set()
    if path.name == "jobs.db":
        with JobDatabase(path, lambda: events) as jobs:
            jobs.record(LATER)
            return {row.job_id for row in jobs.jobs()}
    journal = Journal(path, sync="normal")
    journal.append([(LATER, 0)])
    state = journal.restore().state
    known = set(State.restore(state).jobs) if state is not None else set()
    known |= {item.event.job_id for item in journal.events() if isinstance(item.event, JobStarted)}
    journal.close()
    return known


def _check_said_and_kept(caplog: pytest.LogCaptureFixture, path: Path, damaged: bytes | None) -> None:
    told = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(told) == 1 and told[0].exc_info is None, caplog.text
    assert f"{path.name} is damaged (" in told[0].getMessage()
    aside = [p for p in path.parent.iterdir() if p.name.startswith(f"{path.name}.damaged-")]
    kept = [p for p in aside if not p.name.endswith(("-wal", "-shm"))] or aside
    assert kept and kept[0].name.removesuffix("-wal") in told[0].getMessage()
    if damaged is not None:
        assert kept[0].read_bytes() == damaged, "as it was found"
    for part in path.parent.iterdir():
        assert part.is_dir() or part.is_symlink() or not stat.S_IMODE(part.stat().st_mode) & 0o077, part
    assert not list(path.parent.glob("salvage-*"))


@pytest.mark.parametrize(("file", "name"), CASES, ids=[f"{f}: {n}" for f, n in CASES])
def test_a_damaged_file_is_said_kept_and_made_anew(
    before: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, name: str
) -> None:
    path = tmp_path / "state" / file
    shutil.copytree(before, path.parent)
    journal = Journal(before / "journal.db")
    events = list(journal.events())
    journal.close()
    ({**DAMAGES, **BY_FILE[file]}[name])(path)
    damaged = path.read_bytes() if path.is_file() else None
    known = _opened(path, events)
    if name == "user version" and file != "jobs.db":  # neither of them uses it
        assert "damaged" not in caplog.text
    else:
        _check_said_and_kept(caplog, path, damaged)
    if file == "jobs.db":
        assert known == {*JOBS, "later"}
    elif file == "journal.db":
        assert "later" in known
        if name in READABLE:
            assert known >= {*JOBS, "later"}, "what could be read is not lost"
    assert _opened(path, events) == known, "the next start finds nothing wrong"


@pytest.mark.parametrize("file", FILES)
def test_a_controller_starts_over_a_damaged_file_and_knows_every_job(
    before: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    path = tmp_path / "state" / file
    shutil.copytree(before, path.parent)
    DAMAGES["every later page"](path)
    damaged = path.read_bytes()
    with running_site(tmp_path), _client(tmp_path) as client:
        client.publish(JobStarted(job_id="later", nodes=("c1",)), confirm=True, timeout=WAIT_S)
    _check_said_and_kept(caplog, path, damaged)
    assert _jobs(tmp_path) == JOBS | {"later": (True, False)}


def test_two_damages_in_one_second_are_both_kept(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / "jobs.db").write_text(f"damage {n}")
        JobDatabase(tmp_path / "jobs.db").close()
    kept = {path.read_text() for path in tmp_path.glob("jobs.db.damaged-*")}
    assert kept == {"damage 0", "damage 1", "damage 2"}


@pytest.mark.parametrize("file", FILES)
def test_damage_while_the_controller_runs_is_said_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    state = tmp_path / "state"
    with running_site(tmp_path), _client(tmp_path) as client:
        client.publish(JobStarted(job_id="1", nodes=("c1",)), confirm=True, timeout=WAIT_S)
        wait_until(lambda: (state / file).stat().st_size > 4096 or (state / f"{file}-wal").exists())
        for suffix in ("", "-wal"):
            part = state / f"{file}{suffix}"
            if part.exists():
                os.truncate(part, 0) if suffix else part.write_bytes(b"\xa5" * max(4096, part.stat().st_size))
        for n in range(2, 40):
            client.publish(JobStarted(job_id=str(n), nodes=("c1",)))
        client.publish(JobStarted(job_id="40", nodes=("c1",)), confirm=True, timeout=WAIT_S)
    assert "Traceback" not in caplog.text and not any(r.exc_info for r in caplog.records)
    with running_site(tmp_path):
        pass
    assert set(_jobs(tmp_path)) >= {str(n) for n in range(1, 41)}
    assert f"{file} is damaged" in caplog.text


def test_a_journal_that_was_removed_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_site(tmp_path), _client(tmp_path) as client:
        client.publish(JobStarted(job_id="1", nodes=("c1",)), confirm=True, timeout=WAIT_S)
        for part in (tmp_path / "state").glob("journal.db*"):
            part.unlink()
        client.publish(JobStarted(job_id="2", nodes=("c1",)), confirm=True, timeout=WAIT_S)
        wait_until(lambda: "removed or replaced" in caplog.text)
    with running_site(tmp_path), _client(tmp_path) as client:
        assert client.snapshot().events >= 2


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_state_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = tmp_path / "a" / "b"
        journal = Journal(folder / "journal.db")
        jobs = JobDatabase(folder / "jobs.db")
        cursors = FileCursors(folder, "reader")
        item = Envelope(
            event=JobStarted(job_id="1", nodes=("c1",)), event_id="1", source="s", seq=1, time_ns=1
        )
        journal.append([(item, 0)])
        jobs.record(item)
        cursors.save([("s", "JobStarted", 1)])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert {"journal.db", "jobs.db-wal", "reader.cursor"} <= set(modes)
        assert set(modes.values()) == {0o600}
        for made in (folder, folder.parent):
            assert stat.S_IMODE(made.stat().st_mode) == 0o700
        for open_file in (journal, jobs, cursors):
            open_file.close()
        for path in folder.iterdir():
            path.chmod(0o644)
        Journal(folder / "journal.db").close()
        JobDatabase(folder / "jobs.db").close()
        FileCursors(folder, "reader").close()
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    finally:
        os.umask(before)


def test_a_durable_subscriber_whose_position_is_lost_is_notified(tmp_path: Path) -> None:
    (tmp_path / "reader.cursor").write_bytes(b"garbage")
    with (
        Backplane.open() as backplane,
        backplane.subscribe("JobStarted", durable="reader", state_dir=tmp_path) as subscription,
    ):
        item = subscription.get(WAIT_S)
        assert item is not None and isinstance(item.event, Missed) and item.event.publisher == "*"


def test_a_cursor_damaged_in_use_is_written_anew_from_memory(tmp_path: Path) -> None:
    cursors = FileCursors(tmp_path, "reader")
    cursors.save([("s", "JobStarted", 7)])
    _sql("PRAGMA user_version = 1;")(cursors.path)  # what is in memory counts for nothing then
    _sql("PRAGMA wal_checkpoint;")(cursors.path)
    cursors.path.write_bytes(b"\xa5" * cursors.path.stat().st_size)
    cursors.save([("t", "JobStarted", 3)])
    cursors.close()
    again = FileCursors(tmp_path, "reader")
    assert again.load() == {"s": {"JobStarted": 7}, "t": {"JobStarted": 3}} and not again.lost
    again.close()


def test_the_command_says_it_in_one_sentence_each(before: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(before, state)
    for file in FILES:
        (state / file).write_bytes(b"")
    ready = tmp_path / "ready"
    argv = command("controller", "--state-dir", str(state), "--quiet", "--ready-file", str(ready))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        wait_until(ready.exists, ran, "the controller's start")
        ran.send_signal(signal.SIGTERM)
        _, err = ran.communicate(timeout=WAIT_S)
    assert len(list(state.glob("*.damaged-*"))) >= 3, "what was set aside"
    assert ran.returncode == 0, err
    assert "Traceback" not in err and "internal error" not in err
    for file in FILES:
        assert err.count(f"{file} is damaged (it is empty)") == 1, err
