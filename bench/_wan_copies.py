"""Copies between the ends of an emulated path. Used by the wide-area benchmarks.

`waystage serve` runs at right and `waystage copy` at left, as complete commands. Files are in memory (`/dev/shm`), so
that no disk is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _wan_paths import RIGHT, Trace, ended, run_left, start_left, start_server, traced

from waystage._native import wan_make_key, wan_read_key
from waystage.bench import BenchError

MEMORY = Path("/dev/shm")
PORT = 7900
WAYSTAGE = [sys.executable, "-P", "-m", "waystage"]


@dataclass(frozen=True)
class Copied:
    """A copy that ended. `value` is what it printed as JSON."""

    payload_bytes: int
    seconds: float
    wrong_share: float
    value: dict[str, Any]
    trace: Trace

    def payload_share(self) -> float:
        """Payload over what arrived, headers and duplicates included."""
        return self.payload_bytes / self.trace.points[-1][1]


class Ends:
    """A server at right of a path, and a client's key at left."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.server: subprocess.Popen[str]
        self.near, self.far = folder / "near", folder / "far"
        for each in (self.near, self.far):
            each.mkdir()
        wan_make_key(folder / "server.key")
        client = wan_make_key(folder / "client.key")
        (folder / "serve.toml").write_text(
            f'listen = "{RIGHT}:{PORT}"\nkey = "server.key"\nlog = "serve.log"\n'
            f'[[root]]\npath = "{self.far}"\nwrite = true\nprivileged = true\n'
            f'[users.bench]\nkeys = ["{client}"]\naccount = "root"\nmodes = ["fast-start", "aggressive"]\n'
            'probe = true\nproxy = ["allow 127.0.0.1"]\n',
            encoding="utf-8",
        )

    def command(self, *words: str) -> list[str]:
        """A client's command, such as `command("probe", ADDRESS, ...)`, with the keys of both ends."""
        keys = [
            "--identity",
            str(self.folder / "client.key"),
            "--server-key",
            wan_read_key(self.folder / "server.key"),
        ]
        return [*WAYSTAGE, *words, *keys, "--udp-wait", "30"]

    def there(self, path: str) -> str:
        return f"{RIGHT}:{self.far / path}"

    def begin(
        self, source: str, destination: str, *, mode: str = "fair", more: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a copy; the caller ends it."""
        return start_left(self.name, self._copying(source, destination, mode, more))

    def _copying(self, source: str, destination: str, mode: str, more: Sequence[str] = ()) -> list[str]:
        return self.command("copy", source, destination, "--json", "--mode", mode, "--port", str(PORT), *more)

    def copy(
        self,
        source: str,
        destination: str,
        *,
        mode: str = "fair",
        way: str = "forward",
        limit_s: float = 600.0,
        more: Sequence[str] = (),
    ) -> Copied:
        """Copy, and trace what arrives by `way`. Raises BenchError where the copy fails, or does not use UDP."""
        with traced(self.name, way) as trace:
            ran = run_left(self.name, self._copying(source, destination, mode, more), limit_s)
        if ran.status != 0:
            raise BenchError(f"the copy failed: {ran.err.strip()[-300:]}")
        value = json.loads(ran.out)
        if value["connection"]["way"] != "UDP":
            raise BenchError("the copy went over TCP: nothing came back over UDP in time")
        return Copied(value["counts"]["bytes"], ran.seconds, ran.wrong_share, value, trace)

    def serve(self) -> None:
        """Start the server, and wait until it listens."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        config = ["--config", str(self.folder / "serve.toml"), "--ready-file", str(ready)]
        self.server = start_server(self.name, "right", [*WAYSTAGE, "serve", *config], ready)


@contextlib.contextmanager
def ends_of(name: str) -> Iterator[Ends]:
    """A server at right of path `name`, with files in memory, while the body runs."""
    with tempfile.TemporaryDirectory(prefix="waystage-wan-", dir=MEMORY) as folder:
        ends = Ends(name, Path(folder))
        ends.serve()
        try:
            yield ends
        finally:
            ended(ends.server)


def made_file(path: Path, size: int) -> Path:
    """A file that does not compress."""
    piece = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for at in range(0, size, len(piece)):
            file.write(piece[: size - at])
    return path
