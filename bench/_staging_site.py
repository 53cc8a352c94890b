"""A staging site for benchmarks: a stager, a controller and a far end, each of which may be killed and is started again.

Everything is in one folder: the stager runs as this user, as root for the user nobody.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import pwd
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError

START_S = 60.0
ENGINES = 4


@dataclass
class Site:
    """`start(NAME)` and `kill(NAME)` for stager, controller and server; `stage(...)` is the command line."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = 0

    @property
    def user(self) -> str:
        return "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

    @property
    def endpoint(self) -> str:
        return f"unixsock-stream/{self.folder}/backplane.sock"

    def words(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "waystage", *map(str, words)]

    def start(self, name: str) -> None:
        """Start it, with what it left before."""
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        words = self.words(*getattr(self, f"_{name}")(), "--ready-file", ready)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )
        until = time.monotonic() + START_S
        while not ready.exists():
            if self.processes[name].poll() is not None or time.monotonic() > until:
                raise BenchError(f"{name} did not start: {(self.folder / f'{name}.log').read_text()[-400:]}")
            time.sleep(0.02)
        if name == "server":
            self.port = int(ready.read_text(encoding="ascii").rpartition(":")[2])

    def start_all(self, *names: str) -> None:
        """Start those of them that do not run."""
        for name in names:
            if self.processes[name].poll() is not None:
                self.start(name)

    def kill(self, name: str) -> None:
        """`kill -9`, without starting it again."""
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def kill_engine(self, chance: random.Random) -> bool:
        """`kill -9` of one engine; False where none runs."""
        with contextlib.closing(sqlite3.connect(self.folder / "state" / "staging.sqlite", timeout=30)) as db:
            rows = db.execute("SELECT value FROM requests WHERE state = 'running'").fetchall()
        running = [pid for row in rows if (pid := json.loads(row[0])["engine_pid"])]
        if not running:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(running), signal.SIGKILL)
        return True

    def stage(self, *words: object) -> Any:
        """The JSON that `waystage stage` prints. Raises BenchError."""
        done = subprocess.run(
            self.words("stage", *words, "--json"),
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
        )
        if done.returncode not in (0, 8, 75):
            raise BenchError(f"stage {words[0]} failed: {done.stdout} {done.stderr}")
        return json.loads(done.stdout)

    def submit(self, direction: str, source: object, destination: object, job: str, *words: object) -> int:
        user = ("--user", self.user) if os.geteuid() == 0 else ()
        number: int = self.stage(direction, source, destination, "--job", job, *user, *words)["id"]
        return number

    def far(self, path: Path) -> tuple[str, tuple[object, ...]]:
        """Source and options of a path at the far end."""
        key = wan_read_key(self.folder / "server.key")
        return (
            f"127.0.0.1:{path}",
            ("--port", self.port, "--identity", self.folder / "client.key", "--server-key", key),
        )

    def staging_at_controller(self) -> int:
        """Jobs that the controller believes to be staging."""
        done = subprocess.run(
            self.words("state", "show", "--endpoint", self.endpoint, "--json"),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"the controller's state cannot be read: {done.stdout}")
        jobs = json.loads(done.stdout)["jobs"]
        return sum(bool(job.get("staging")) for job in jobs.values())

    def own(self, path: Path) -> None:
        """Make a tree the user's."""
        if os.geteuid() == 0:
            about = pwd.getpwnam(self.user)
            for each in (path, *path.rglob("*")):
                os.chown(each, about.pw_uid, about.pw_gid)

    def _environment(self) -> dict[str, str]:
        more = {
            "WAYSTAGE_STAGER": str(self.folder / "stager.sock"),
            "WAYSTAGE_FLOWS": str(self.folder / "flows.sock"),
        }
        return {**os.environ, **more}

    def _stager(self) -> list[object]:
        return [
            *("stager", "--state-dir", self.folder / "state", "--socket", self.folder / "stager.sock"),
            *("--engines", ENGINES, "--endpoint", self.endpoint),
        ]

    def _controller(self) -> list[object]:
        return ["controller", "--listen", self.endpoint, "--state-dir", self.folder / "controller"]

    def _server(self) -> list[object]:
        config = self.folder / "serve.toml"
        account = f'account = "{self.user}"\n' if os.geteuid() == 0 else ""
        config.write_text(
            f'listen = "127.0.0.1:{self.port}"\nkey = "server.key"\n[[root]]\npath = "{self.folder}/data"\n'
            f'[users.one]\nkeys = ["{wan_read_key(self.folder / "client.key")}"]\n{account}',
            encoding="utf-8",
        )
        return ["serve", "--config", config]


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """A site whose processes have not been started; all are ended and its folder removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="waystage-site-"))
    folder.chmod(0o755)
    made = Site(folder)
    (folder / "data").mkdir()
    made.own(folder / "data")
    for name in ("server.key", "client.key"):
        wan_make_key(folder / name)
    made.own(folder / "client.key")
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def different_bytes(one: Path, other: Path) -> int:
    """Bytes of files that differ, and of those that are at one end only."""
    names = {path.relative_to(top) for top in (one, other) for path in top.rglob("*") if path.is_file()}
    found = 0
    for name in names:
        present = [path / name for path in (one, other) if (path / name).is_file()]
        if len(present) < 2 or not filecmp.cmp(present[0], present[1], shallow=False):
            found += max(file.stat().st_size for file in present) or 1
    return found
