"""A site with its view, as processes."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness import WAIT_S, command, ran, wait_until


class Site:
    """A controller and a view of it, as processes."""

    def __init__(self, folder: Path, *, view: bool = True) -> None:
        self.folder = folder
        self.endpoint = f"unixsock-stream/{folder}/backplane.sock"
        self._running: list[subprocess.Popen[bytes]] = []
        self.controller = self.control()
        if not view:
            return
        ready = folder / "view.url"
        self.view = self._start(
            "view", "--listen", "127.0.0.1:0", "--endpoint", self.endpoint, "--ready-file", ready, ready=ready
        )
        assert ready.stat().st_mode & 0o777 == 0o600
        self.address, _, self.token = ready.read_text().strip().partition("#token=")

    def control(self) -> subprocess.Popen[bytes]:
        ready = self.folder / "controller.ready"
        ready.unlink(missing_ok=True)
        self.controller = self._start(
            "controller", "--listen", self.endpoint, "--topology", "paper", "--name", "site-1",
            "--policy", "link-separation", "--state-dir", self.folder / "state", "--ready-file", ready,
            ready=ready,
        )  # fmt: skip
        return self.controller

    def _start(self, *words: object, ready: Path) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            process = subprocess.Popen(command(*words), stdout=log, stderr=log)
        self._running.append(process)
        wait_until(ready.exists, process, f"the start of {words[0]}")
        return process

    def notify(self, *words: str) -> None:
        ran(command("notify", *words, "--endpoint", self.endpoint)).expect()

    def read(self, path: str) -> str:
        request = urllib.request.Request(
            self.address + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return str(answer.read().decode())

    def now(self, section: str) -> dict[str, Any]:
        try:
            frame = json.loads(self.read("api/at?t=99999999999999"))
        except urllib.error.HTTPError:
            return {}
        found: dict[str, Any] = frame.get("set", {}).get(section, {})
        return found

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            process.wait(WAIT_S)
