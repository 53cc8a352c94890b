"""A request is carried out with its user's rights, survives kills, and says what it does."""

from __future__ import annotations

import os
import pwd
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import WAIT_S, command, ran, wait_until
from staging_support import ROOT, Stage, same
from waystage.local_client import LocalClient, LocalRpcError
from waystage.staging import client
from waystage.staging.processes import start_of
from waystage.staging.requests import Submission

SLOWLY = ("--bandwidth-limit", "15M")
"""So that an engine is there to be killed."""

NEEDS_ROOT = pytest.mark.skipif(not ROOT, reason="needs root, to act for another user")


def test_a_request_is_queued_carried_out_and_shown(stage: Stage) -> None:
    source = stage.tree("source")
    stage.start()
    number = stage.submit("in", source, stage.data / "new" / "copy")
    [found] = stage.wait(number)
    assert found["state"] == "done" and found["bytes_done"] == found["bytes_total"] == 20_000
    assert found["files_done"] == 20
    assert same(source, stage.data / "new" / "copy")
    shown = stage.stage("status", "--job", "7", "--explain").expect().out
    assert "done" in shown and "within this host" in shown


@NEEDS_ROOT
def test_a_copy_belongs_to_the_user_and_not_to_root(stage: Stage) -> None:
    source = stage.tree("source")
    stage.start()
    stage.wait(stage.submit("in", source, stage.data / "copy"))
    uid = pwd.getpwnam(stage.user).pw_uid
    assert {path.stat().st_uid for path in (stage.data / "copy", *(stage.data / "copy").iterdir())} == {uid}


@NEEDS_ROOT
def test_a_path_outside_the_users_rights_fails_at_once_with_its_name(stage: Stage) -> None:
    private = stage.folder / "private"
    private.mkdir(mode=0o700)
    (private / "secret").write_text("x")
    source = stage.tree("source")
    stage.start()
    numbers = [
        stage.submit("in", private / "secret", stage.data / "one"),
        stage.submit("in", source, private / "two"),
    ]
    for found, path in zip(stage.wait(*numbers), (private / "secret", private), strict=True):
        assert found["state"] == "failed" and found["attempts"] == 1
        assert str(path) in found["error"] and "Permission denied" in found["error"]
    assert not (stage.data / "one").exists() and [p.name for p in private.iterdir()] == ["secret"]


@pytest.mark.parametrize("victim", ["stager", "engine", "spawner"])
def test_after_a_kill_the_request_is_completed(stage: Stage, victim: str) -> None:
    source = stage.tree("source", files=3, size=50 << 20)
    stage.start()
    number = stage.submit("in", source, stage.data / "copy", *SLOWLY)
    wait_until(lambda: stage.engine(number), stage.process)
    pid, start = stage.engine(number), start_of(stage.engine(number))
    if victim == "engine":
        os.kill(pid, signal.SIGKILL)
    elif victim == "spawner":
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        wait_until(lambda: start_of(pid) != start, what="the engine's end with its parent")
    else:
        stage.end(signal.SIGKILL)
        wait_until(lambda: start_of(pid) != start, what="the engine's end with its stager")
        stage.start()
    [found] = stage.wait(number)
    assert found["state"] == "done", found
    assert same(source, stage.data / "copy")
    assert [path.name for path in (stage.data / "copy").iterdir() if path.name.startswith(".way")] == []


def test_a_stopped_engine_of_a_killed_stager_is_ended_before_the_request_goes_on(stage: Stage) -> None:
    source = stage.tree("source", files=3, size=50 << 20)
    stage.start()
    number = stage.submit("in", source, stage.data / "copy", *SLOWLY)
    wait_until(lambda: stage.engine(number), stage.process)
    pid, start = stage.engine(number), start_of(stage.engine(number))
    os.kill(pid, signal.SIGSTOP)
    stage.end(signal.SIGKILL)
    stage.start()
    [found] = stage.wait(number)
    assert found["state"] == "done" and start_of(pid) != start
    assert same(source, stage.data / "copy")


def test_a_repeated_key_is_one_request_and_a_different_one_is_refused(stage: Stage) -> None:
    source = stage.tree("source")
    stage.start()
    first = stage.submit("in", source, stage.data / "copy", "--key", "hook-1")
    assert stage.submit("in", source, stage.data / "copy", "--key", "hook-1") == first
    user = ("--user", stage.user) if ROOT else ()
    other = stage.stage("in", source, stage.data / "other", "--job", "7", "--key", "hook-1", *user)
    assert other.code == 3 and "same --key" in other.err
    stage.wait(first)
    assert len(stage.status()) == 1


def test_a_second_request_with_the_same_destination_waits_for_the_first(stage: Stage) -> None:
    one, two = stage.tree("one", files=2, size=100 << 20), stage.tree("two")
    stage.start()
    numbers = [stage.submit("in", each, stage.data / "copy") for each in (one, two)]
    first, second = stage.wait(*numbers)
    assert (first["state"], second["state"]) == ("done", "done")
    assert first["finished_ns"] <= second["started_ns"]


def test_a_cancelled_request_ends_and_the_same_one_resumes_it(stage: Stage) -> None:
    source = stage.tree("source", files=3, size=50 << 20)
    stage.start()
    # So slow that a busy machine can ask for its end.
    number = stage.submit("in", source, stage.data / "copy", "--bandwidth-limit", "1M")
    wait_until(lambda: stage.state(number) != "queued", stage.process)
    stage.stage("cancel", number).expect()
    ended = stage.stage("wait", number)
    assert (ended.code, stage.state(number)) == (8, "cancelled")
    stage.wait(stage.submit("in", source, stage.data / "copy"))
    assert same(source, stage.data / "copy")


def test_waiting_has_a_limit_and_unknown_requests_a_sentence(stage: Stage) -> None:
    stage.start("--retry-for", "600")
    number = stage.submit("in", "127.0.0.1:/nothing", stage.data / "copy", "--port", "9", *stage.identity())
    late = stage.stage("wait", number, "--timeout", "1")
    assert late.code == 75 and f"request {number}" in late.err
    wait_until(lambda: "attempt" in stage.status(number)[0]["reason"], stage.process)
    for words in (("wait", 99), ("cancel", 99), ("status", "--job", "nosuch")):
        refused = stage.stage(*words)
        assert refused.code == 3 and ("unknown" in refused.err or "is known" in refused.err)


def test_a_dry_run_says_what_would_move_and_the_time_once_it_was_measured(stage: Stage) -> None:
    source = stage.tree("source", files=4, size=50 << 20)
    stage.start()
    user = ("--user", stage.user) if ROOT else ()
    words = ("in", source, stage.data / "copy", "--job", "7", "--dry-run", *user)
    before = stage.stage(*words).expect().out
    assert "would move 209.7 MB in 4 files" in before and "unknown" in before
    assert not (stage.data / "copy").exists()
    stage.wait(stage.submit("in", source, stage.data / "other"))
    after = stage.stage(*words, "--json").expect().json
    assert after["plan"]["expected"]["seconds"] > 0 and after["plan"]["expected"]["count"] == 1
    assert len(stage.status()) == 1, "dry runs are not listed"


def test_submits_wait_for_a_stager_that_is_being_restarted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stage.tree("source")
    stage.start()
    stage.end(signal.SIGKILL)
    refused = threading.Event()

    class Watched(LocalClient):
        def __init__(self, path: Path) -> None:
            try:
                super().__init__(path)
            except LocalRpcError:
                refused.set()
                raise

    monkeypatch.setattr(client, "LocalClient", Watched)
    asked = Submission(
        direction="in",
        source=str(source),
        destination=str(stage.data / "copy"),
        job_id="7",
        user=stage.user if ROOT else "",
    )

    def submit() -> int:
        # As the command does, and for as long as a stager may need to start on a busy machine.
        with client.Client(stage.socket, patience_s=WAIT_S) as found:
            return int(found.submit(asked)["id"])

    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(submit)
        wait_until(refused.is_set, what="a submit without a stager")
        stage.start()
        number = submitted.result(WAIT_S)
    assert stage.wait(number)[0]["state"] == "done"


def test_two_stagers_do_not_share_a_queue(stage: Stage) -> None:
    stage.start()
    second = ran(
        command("stager", "--state-dir", stage.folder / "state", "--socket", stage.folder / "other.sock")
    )
    assert second.code == 1 and "another stager uses it" in second.err


def test_a_finished_request_is_still_shown_after_a_restart_and_forgotten_in_time(stage: Stage) -> None:
    stage.start()
    number = stage.submit("in", stage.tree("source"), stage.data / "copy")
    stage.wait(number)
    assert stage.end() == 0
    stage.start()
    assert stage.state(number) == "done"
    stage.end()
    stage.start("--retain", "0")
    wait_until(
        lambda: stage.stage("status", number).code == 3, stage.process, "the end of what is known of it"
    )


def test_a_name_that_is_no_text_is_staged(stage: Stage) -> None:
    name = os.fsdecode(os.fsencode(str(stage.data)) + b"/f\xff")
    Path(name).write_bytes(b"x")
    os.chmod(name, 0o644)
    stage.start()
    [found] = stage.wait(stage.submit("in", name, stage.data / "copy"))
    assert found["state"] == "done" and (stage.data / "copy").read_bytes() == b"x"
