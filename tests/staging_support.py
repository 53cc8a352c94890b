"""A real stager and its clients, for the tests of staging.

As root, it serves `nobody` in a folder that this user can reach.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import WAIT_S, Ran, command, ran, wait_until
from waystage._native import wan_make_key

ROOT = os.geteuid() == 0

FAST_CLOCK = """
from waystage.staging import clock
clock.SPEED = {}
from waystage.cli.main import main
raise SystemExit(main())
"""


@dataclass
class Stage:
    """A folder with `data`, in which the request's user may write, and a stager."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def user(self) -> str:
        return "nobody" if ROOT else pwd.getpwuid(os.geteuid()).pw_name

    @property
    def socket(self) -> Path:
        return self.folder / "stager.sock"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "WAYSTAGE_STAGER": str(self.socket), "HOME": str(self.folder / "home")}

    def start(
        self, *words: object, settings: dict[str, Any] | None = None, clock_speed: float | None = None
    ) -> None:
        """Start the stager, a second time with what the first left. With `clock_speed` its clock for attempts runs that
        factor faster than the machine's."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *(
                    command()
                    if clock_speed is None
                    else [sys.executable, "-c", FAST_CLOCK.format(clock_speed)]
                ),
                "stager",
                "--state-dir",
                str(self.folder / "state"),
                "--socket",
                str(self.socket),
                "--ready-file",
                str(ready),
                *map(str, words),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            env=self.environment(),
            **(settings or {}),
        )
        self.started.append(self.process)
        wait_until(ready.exists, self.process, "the stager's start")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def stage(self, *words: object) -> Ran:
        return self.stage_program("stage", *words)

    def stage_program(self, *words: object) -> Ran:
        """A subcommand of `waystage`, with this stage's socket."""
        return ran(command(*words), env=self.environment())

    def submit(
        self, direction: str, source: object, destination: object, *words: object, job: str = "7"
    ) -> int:
        """The number of a request for the user."""
        user = ("--user", self.user) if ROOT else ()
        done = self.stage(direction, source, destination, "--job", job, *user, *words, "--json").expect()
        number: int = done.json["id"]
        return number

    def wait(self, *numbers: int) -> list[dict[str, Any]]:
        done = self.stage("wait", *numbers, "--timeout", WAIT_S, "--json")
        assert done.code in (0, 8), done.err + done.out + self.log()
        found: list[dict[str, Any]] = json.loads(done.out)
        return found

    def status(self, *numbers: int, explain: bool = False) -> list[dict[str, Any]]:
        more = ("--explain",) if explain else ()
        found: list[dict[str, Any]] = self.stage("status", *numbers, *more, "--json").expect().json
        return found

    def state(self, number: int) -> str:
        return str(self.status(number)[0]["state"])

    def row(self, number: int) -> dict[str, Any]:
        """What the queue has on disk of a request."""
        with sqlite3.connect(self.folder / "state" / "staging.sqlite") as db:
            row = db.execute("SELECT value FROM requests WHERE id = ?", (number,)).fetchone()
        value: dict[str, Any] = json.loads(row[0])
        return value

    def engine(self, number: int) -> int:
        """The process of a request's engine, 0 where it has none."""
        return int(self.row(number)["engine_pid"])

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def tree(self, name: str, files: int = 20, size: int = 1000) -> Path:
        """A tree that everyone can read."""
        top = self.data / name
        top.mkdir()
        for number in range(files):
            (top / f"{number:04}").write_bytes(os.urandom(size))
        self.give(top)
        return top

    def give(self, path: Path) -> None:
        """Make the path, and what is below it, the user's."""
        if ROOT:
            about = pwd.getpwnam(self.user)
            for each in (path, *path.rglob("*")):
                os.lchown(each, about.pw_uid, about.pw_gid)

    def identity(self) -> tuple[object, ...]:
        """Options with a key of the user, who may have no home."""
        key = self.data / "key"
        if not key.exists():
            wan_make_key(key)
            self.give(key)
        return "--identity", key

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        wait_until(self._removed, what="the end of engines that write in the folder")

    def _removed(self) -> bool:
        """An engine ends after its stager, and may make a file in a directory that is being removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()


@contextmanager
def stage_in_folder() -> Iterator[Stage]:
    """A stage whose folder other users can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="waystage-stage-"))
    folder.chmod(0o755)
    made = Stage(folder)
    made.data.mkdir()
    made.give(made.data)
    (folder / "home").mkdir()
    try:
        yield made
    finally:
        made.close()


def same(one: Path, other: Path) -> bool:
    """Whether two trees have the same files with the same contents, and no other."""
    return contents(one) == contents(other)


def contents(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def as_user(uid: int) -> Callable[[], None]:
    """For `preexec_fn`: become this user."""

    def become() -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    return become
