"""No user can act for another, read another's requests, or keep others from being served."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waystage
from harness import WAIT_S, halt, wait_until
from staging_support import ROOT, Stage, as_user, same
from waystage.local_client import LocalRpcError
from waystage.staging.client import Client
from waystage.staging.errors import StagingError
from waystage.staging.requests import Submission

pytestmark = pytest.mark.skipif(not ROOT, reason="needs root, to be several users")

STRANGER = 65533
"""A user that the system does not list."""


def acting_as(uid: int, call: Callable[[], Any]) -> Any:
    """The result of `call` in a process of another user, or the text of its StagingError."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            as_user(uid)()
            try:
                value = call()
            except (StagingError, LocalRpcError) as error:
                value = f"{type(error).__name__}: {error}"
            os.write(sender, json.dumps(value).encode())
        finally:
            os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return json.loads(data)


def asking(stage: Stage, uid: int, call: Callable[[Client], Any]) -> Any:
    def inner() -> Any:
        with Client(stage.socket) as client:
            return call(client)

    return acting_as(uid, inner)


def submission(source: object, destination: object, **more: Any) -> Submission:
    return Submission(direction="in", source=str(source), destination=str(destination), job_id="8", **more)


def test_requests_of_another_user_are_neither_shown_nor_cancelled(stage: Stage) -> None:
    stage.start()
    number = stage.submit("in", stage.tree("source"), stage.data / "copy")
    stage.wait(number)
    assert "unknown" in asking(stage, STRANGER, lambda client: client.status([number]))
    assert "unknown" in asking(stage, STRANGER, lambda client: client.cancel([number]))
    assert asking(stage, STRANGER, lambda client: client.status()) == []
    assert "job" in asking(stage, STRANGER, lambda client: client.status(None, "7"))


def test_only_root_and_submitters_may_name_another_user(stage: Stage) -> None:
    stage.start()
    source = stage.tree("source")
    asked = submission(source, stage.data / "copy", user="root")
    assert "--submitter" in asking(stage, STRANGER, lambda client: client.submit(asked))
    stage.end()
    stage.start("--submitter", "daemon")
    account = pwd.getpwnam(stage.user).pw_uid
    asked = submission(source, stage.data / "copy", user=str(account))
    request = asking(stage, pwd.getpwnam("daemon").pw_uid, lambda client: client.submit(asked))
    assert request["user"] == stage.user
    assert stage.wait(request["id"])[0]["state"] == "done"
    assert (stage.data / "copy").stat().st_uid == account


def test_a_user_that_the_system_does_not_list_has_its_own_rights(stage: Stage) -> None:
    place = stage.folder / "theirs"
    place.mkdir()
    os.chown(place, STRANGER, STRANGER)
    source = stage.tree("source")
    stage.start()
    request = asking(stage, STRANGER, lambda client: client.submit(submission(source, place / "copy")))
    assert stage.wait(request["id"])[0]["state"] == "done"
    assert {(p.stat().st_uid, p.stat().st_gid) for p in (place / "copy").iterdir()} <= {(STRANGER, STRANGER)}


def test_a_job_of_another_user_is_refused(stage: Stage) -> None:
    stage.start()
    source = stage.tree("source")
    stage.wait(stage.submit("in", source, stage.data / "copy", job="8"))
    asked = submission(source, "/tmp/never")
    assert "belongs to another user" in asking(stage, STRANGER, lambda client: client.submit(asked))


def test_a_flood_of_submits_is_bounded_and_others_are_served(stage: Stage) -> None:
    stage.start("--requests-per-user", "5")
    lines = b"".join(
        json.dumps(
            {
                "op": "submit",
                "submission": {
                    "direction": "in",
                    "source": "/nothing",
                    "destination": f"/x{n}",
                    "job_id": "9",
                },
            }
        ).encode()
        + b"\n"
        for n in range(2000)
    )
    said = stage.folder / "answers"
    with said.open("wb") as answers:
        flooding = subprocess.Popen(
            [
                *(sys.executable, "-c"),
                "import os,socket,sys; os.setgid(65533); os.setuid(65533); s=socket.socket(socket.AF_UNIX);"
                "s.connect(sys.argv[1]); lines=sys.stdin.buffer.read()\n"
                "while True:\n s.sendall(lines); s.recv(1<<20); print('answered', flush=True)",
                str(stage.socket),
            ],
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=subprocess.DEVNULL,
        )
    try:
        assert flooding.stdin is not None
        flooding.stdin.write(lines)
        flooding.stdin.close()
        wait_until(lambda: said.stat().st_size > 0, flooding, "the first answer to the flood")
        number = stage.submit("in", stage.tree("source"), stage.data / "copy")
        assert stage.wait(number)[0]["state"] == "done"
        assert flooding.poll() is None, "it was served beside the flood"
        found = stage.stage("status", "--json").expect().json
        unfinished = [r for r in found if r["user"] == "65533" and r["state"] in ("queued", "running")]
        assert len(unfinished) <= 5
    finally:
        flooding.kill()
        flooding.wait()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"op": 7}',
        b'{"op": "submit"}',
        b'{"op": "submit", "submission": {"direction": "up"}}',
        b'{"op": "wait", "ids": ["x"]}',
        b'{"op": "wait", "ids": [1], "timeout_s": 1e99}',
        b'{"op": "status", "ids": [99999999999999999999999]}',
        b'{"op": "cancel"}',
        b"[" * 100_000,
        b'{"op": "submit", "submission": {"direction": "in", "source": "/a\\u0000", "destination": "/b", "job_id": "1"}}',
        b'{"op": "submit", "submission": {"direction": "in", "source": "/a", "destination": "/b", "job_id": "\\n"}}',
        b'{"op": "submit", "submission": {"direction": "in", "source": "a", "destination": "/b", "job_id": "1"}}',
        b'{"op": "submit", "submission": {"direction": "in", "source": "/\\ud800", "destination": "/b", "job_id": "1"}}',
    ],
)
def test_a_damaged_line_has_an_answer_and_the_stager_goes_on(stage: Stage, line: bytes) -> None:
    stage.start()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(stage.socket))
        sock.sendall(line + b"\n")
        assert sock.recv(1 << 16).startswith(b"{")
    assert stage.stage("status").code == 0


def test_a_link_of_another_user_in_the_destination_is_not_followed(stage: Stage) -> None:
    shared = stage.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    target = stage.data / "private"
    target.mkdir()
    stage.give(target)
    (shared / "out").symlink_to(target)
    os.lchown(shared / "out", STRANGER, STRANGER)
    source = stage.tree("source")
    stage.start()
    numbers = [
        stage.submit("in", source, shared / "out"),
        stage.submit("in", source, shared / "out" / "deeper"),
        stage.submit("out", shared / "out", stage.data / "elsewhere"),
    ]
    for found in stage.wait(*numbers):
        assert found["state"] == "failed" and "symbolic link of user 65533" in found["error"], found
    assert list(target.iterdir()) == []
    os.lchown(shared / "out", pwd.getpwnam(stage.user).pw_uid, -1)
    assert stage.wait(stage.submit("in", source, shared / "out"))[0]["state"] == "done"
    assert same(source, target)


def test_a_stager_of_another_user_is_not_trusted(stage: Stage) -> None:
    stage.data.chmod(0o777)
    listener = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import os,socket,sys; os.umask(0); os.setgid(65533); os.setuid(65533);"
            "s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); sys.stdin.read()",
            str(stage.data / "their.sock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert listener.stdout is not None and listener.stdout.readline() == b"\n", "it listens"
        with (
            pytest.raises(StagingError, match="user 65533 serves it"),
            Client(stage.data / "their.sock") as client,
        ):
            client.status()
    finally:
        listener.kill()
        listener.communicate()


def test_an_engine_cannot_be_traced_and_has_no_privileges_left(stage: Stage) -> None:
    stage.start()
    number = stage.submit(
        "in", stage.tree("source", files=2, size=50 << 20), stage.data / "copy", "--bandwidth-limit", "1M"
    )
    wait_until(lambda: stage.engine(number), stage.process)
    pid = stage.engine(number)
    # It is there when it is forked. It takes its name once it has become the user.
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "waystage-engine\n", stage.process)
    halt(pid)  # or it closes files whose links are about to be read
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    about = pwd.getpwnam(stage.user)
    assert (
        status["Uid"].split() == [str(about.pw_uid)] * 4 and status["Gid"].split() == [str(about.pw_gid)] * 4
    )
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"
    assert str(stage.folder / "state") not in " ".join(
        os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()
    )
    # Of a process that is not dumpable, /proc belongs to root.
    assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_a_stager_of_a_user_serves_that_user_alone(stage: Stage) -> None:
    python = shutil.which("python3.11", path="/usr/bin")
    if python is None or sys.version_info[:2] != (3, 11):
        pytest.skip("needs an interpreter in /usr/bin of the same version, which other users can execute")
    account = pwd.getpwnam(stage.user).pw_uid
    home = stage.data / "home"
    home.mkdir()
    stage.give(home)
    # Other tests put folders of modules on the path, of which one has the name of the standard library's `copy`.
    found = [str(Path(waystage.__file__).parents[1]), *(p for p in sys.path if p.endswith("-packages"))]
    path = os.pathsep.join(each for each in found if "/root/" not in each)
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(home)}
    process = subprocess.Popen(
        [
            python,
            "-P",
            "-m",
            "waystage",
            "stager",
            "--state-dir",
            str(home / "state"),
            "--socket",
            str(home / "s"),
            "--ready-file",
            str(home / "ready"),
        ],
        env=environment,
        preexec_fn=as_user(account),
        cwd="/",
    )
    stage.started.append(process)
    wait_until((home / "ready").exists, process)
    source = stage.tree("source")
    stage.folder.chmod(0o755)

    def own(client: Client) -> Any:
        request = client.submit(submission(source, stage.data / "copy"))
        return client.wait([request["id"]], timeout_s=WAIT_S)

    def call() -> Any:
        with Client(home / "s") as client:
            return own(client)

    [found] = acting_as(account, call)
    assert found["state"] == "done" and same(source, stage.data / "copy")
    (home / "s").chmod(0o666)

    def stranger() -> Any:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(home / "s"))
            sock.sendall(b'{"op": "status"}\n')
            return sock.recv(1 << 16).decode()

    assert "serves that user alone" in acting_as(STRANGER, stranger)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


def test_the_queue_is_roots_alone_and_not_where_another_user_could_replace_it(stage: Stage) -> None:
    (stage.folder / "state").mkdir()
    (stage.folder / "state").chmod(0o755)
    stage.start()
    queue = stage.folder / "state/staging.sqlite"

    def tries() -> list[str]:
        found = []
        for attempt in (
            queue.read_bytes,
            lambda: list(queue.parent.iterdir()),
            lambda: (queue.parent / "x").touch(),
        ):
            try:
                attempt()
                found.append("done")
            except PermissionError:
                found.append("refused")
        return found

    assert acting_as(STRANGER, tries) == ["refused"] * 3
    stage.end()
    # As /var/lib/waystage is of the controller's user: that user could put another queue there.
    os.chown(stage.folder, STRANGER, STRANGER)
    done = stage.stage_program("stager", "--state-dir", queue.parent, "--socket", stage.data / "s")
    assert done.code != 0 and f"{stage.folder} belongs to another user" in done.err
