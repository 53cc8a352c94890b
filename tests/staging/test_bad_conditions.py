"""Full storage, changing sources and far ends that are gone: one sentence, nothing lost, other requests go on."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import wait_until
from remote_copy_support import Site
from staging_support import ROOT, Stage, same


@pytest.fixture
def small(stage: Stage) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if not ROOT:
        pytest.skip("needs root, to mount a small file system")
    place = stage.folder / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "none", place], check=True)
    try:
        yield place
    finally:
        stage.end()
        subprocess.run(["umount", place], check=True)


def test_full_storage_is_reported_and_the_same_request_resumes(stage: Stage, small: Path) -> None:
    (small / "other").write_bytes(b"x" * (5 << 20))
    # Small ones: when it is full, those that are being written are fewer than those that had room.
    source = stage.tree("source", files=48, size=128 << 10)
    stage.start()
    full, other = stage.submit("in", source, small / "copy"), stage.submit("in", source, stage.data / "copy")
    failed, fine = stage.wait(full, other)
    assert failed["state"] == "failed" and failed["attempts"] == 1, failed
    assert "space" in failed["error"] and "resumes" in failed["error"]
    assert fine["state"] == "done"
    kept = {path.name for path in (small / "copy").glob("0*")}
    (small / "other").unlink()
    [again] = stage.wait(stage.submit("in", source, small / "copy"))
    assert again["state"] == "done" and same(source, small / "copy") and kept


def test_a_source_that_keeps_changing_fails_with_its_name(stage: Stage) -> None:
    source = stage.tree("source", files=1, size=40 << 20)
    stop = threading.Event()

    def change() -> None:
        with (source / "0000").open("ab") as file:
            while not stop.is_set():
                file.write(b"x" * 1000)
                file.flush()
                time.sleep(0.01)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        stage.start()
        [found] = stage.wait(stage.submit("in", source, stage.data / "copy", "--bandwidth-limit", "20M"))
    finally:
        stop.set()
        thread.join()
    assert found["state"] == "failed" and found["attempts"] == 3, found
    assert "0000" in found["error"] and "changed" in found["error"]


def arrived(folder: Path) -> int:
    """Bytes of files in `folder`, also of those that are not complete; a hole counts for nothing."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it has got its name
            found += 512 * path.lstat().st_blocks
    return found


def test_a_far_end_that_is_gone_is_waited_for_and_resumed(stage: Stage, tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        site.serve()
        port, key = site.port, site.server_key
        for number in range(4):
            (site.given / f"{number}").write_bytes(os.urandom(10 << 20))
        identity = stage.data / "client.key"
        identity.write_bytes((tmp_path / "client.key").read_bytes())
        identity.chmod(0o600)
        stage.give(identity)
        stage.start()
        number = stage.submit(
            *("in", f"127.0.0.1:{site.given}", stage.data / "copy", "--port", port, "--identity", identity),
            *("--server-key", key, "--bandwidth-limit", "5M"),
        )
        # Looked at here: a command that asks the stager may take as long as the copy.
        wait_until(lambda: arrived(stage.data / "copy"), stage.process, "the first bytes")
        site.end(signal.SIGKILL)
        # Between attempts and in one: the reason stays until data moves again.
        wait_until(lambda: "attempt" in stage.status(number)[0]["reason"], stage.process)
        site.serve()
        [found] = stage.wait(number)
        assert found["state"] == "done" and found["attempts"] > 1 and same(site.given, stage.data / "copy")
        assert "between hosts" in stage.stage("status", number, "--explain").out
    finally:
        site.close()


def test_a_far_end_that_is_away_for_an_hour_costs_no_byte_that_had_arrived(
    stage: Stage, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    try:
        site.serve()
        port, key = site.port, site.server_key
        for number in range(4):
            (site.given / f"{number}").write_bytes(os.urandom(40 << 20))
        identity = stage.data / "client.key"
        identity.write_bytes((tmp_path / "client.key").read_bytes())
        identity.chmod(0o600)
        stage.give(identity)
        # The clock of attempts alone: engines, server and connections live in the machine's time.
        stage.start(clock_speed=240.0)
        number = stage.submit(
            *("in", f"127.0.0.1:{site.given}", stage.data / "copy", "--port", port, "--identity", identity),
            *("--server-key", key, "--bandwidth-limit", "15M"),
        )
        wait_until(lambda: arrived(stage.data / "copy") > 60 << 20, stage.process, "more than a file")
        site.end(signal.SIGKILL)
        wait_until(lambda: stage.row(number)["fruitless_since_ns"], stage.process, "an attempt in vain")
        before = stage.status(number)[0]

        def away_s() -> float:
            row = stage.row(number)
            return (
                float(row["not_before_ns"] - row["fruitless_since_ns"]) / 1e9 if row["not_before_ns"] else 0.0
            )

        wait_until(lambda: away_s() >= 3600.0, stage.process)
        during = stage.status(number)[0]
        assert during["state"] in ("queued", "running") and during["attempts"] >= before["attempts"] + 2
        # Between attempts and in one: the user reads why it takes long.
        assert "attempt" in during["reason"] and str(port) in during["reason"], during["reason"]
        assert "attempt" in stage.stage("status", number).expect().out
        # What had arrived is neither lost nor shown as lost.
        assert during["bytes_done"] >= before["bytes_done"] > 40 << 20
        site.serve()
        [found] = stage.wait(number)
        assert found["state"] == "done" and same(site.given, stage.data / "copy")
        assert found["error"] == ""
    finally:
        site.close()


def test_a_far_end_is_given_up_after_the_time_that_the_site_sets(stage: Stage) -> None:
    stage.start("--retry-for", "1")
    number = stage.submit("in", "127.0.0.1:/x", stage.data / "copy", "--port", "9", *stage.identity())
    [found] = stage.wait(number)
    assert found["state"] == "failed" and "given up after" in found["error"]


def test_the_quota_of_bytes_ends_the_request_that_exceeds_it(stage: Stage) -> None:
    stage.start("--bytes-per-user", "10M")
    large, little = stage.tree("large", files=4, size=5 << 20), stage.tree("little")
    [found] = stage.wait(stage.submit("in", large, stage.data / "one", "--bandwidth-limit", "1M"))
    assert found["state"] == "failed" and "are allowed" in found["error"]
    assert stage.wait(stage.submit("in", little, stage.data / "two"))[0]["state"] == "done"


def test_a_damaged_queue_is_kept_aside_and_the_stager_starts(stage: Stage) -> None:
    stage.start()
    stage.wait(stage.submit("in", stage.tree("source"), stage.data / "copy"))
    stage.end()
    queue = stage.folder / "state" / "staging.sqlite"
    data = bytearray(queue.read_bytes())
    data[100:200] = b"\xff" * 100
    queue.write_bytes(data)
    stage.start()
    assert "is damaged" in stage.log() and stage.stage("status").out.strip() == "no requests"
    assert [path for path in queue.parent.iterdir() if "damaged" in path.name]


def test_a_stage_out_outlives_the_client_that_submitted_it(stage: Stage) -> None:
    source = stage.tree("source", files=2, size=20 << 20)
    stage.start()
    user = pwd.getpwuid(os.geteuid()).pw_name if not ROOT else stage.user
    number = stage.submit("out", source, stage.data / "out", "--bandwidth-limit", "40M")
    assert stage.status(number)[0]["user"] == user
    assert stage.wait(number)[0]["state"] == "done" and same(source, stage.data / "out")
