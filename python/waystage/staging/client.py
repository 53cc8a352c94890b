"""Calls to a stager, which may be restarted meanwhile.

Arrives: submissions, ids.
Leaves: requests as JSON values; StagingError with the stager's sentence.
Must not know: the command line.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from waystage.local_client import LocalClient, LocalRpcError
from waystage.staging.errors import KINDS, StagingError, Unreachable
from waystage.staging.requests import FINAL, Submission

SITE_SOCKET = Path("/run/waystage/stager.sock")

PATIENCE_S = 10.0
"""How long a stager may be away, as while it is restarted."""

ANSWER_S = 60.0
POLL_S = 1.0
PAUSE_S = 0.2


def own_socket() -> Path:
    """The socket of a stager of this user's own."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "waystage-stager.sock" if base else Path.home() / ".waystage-stager.sock"


def default_socket() -> Path:
    """$WAYSTAGE_STAGER, else the site's socket, else this user's own where only that exists."""
    given = os.environ.get("WAYSTAGE_STAGER")
    if given:
        return Path(given)
    return own_socket() if not SITE_SOCKET.exists() and own_socket().exists() else SITE_SOCKET


class Client:
    """Each call connects anew where the connection was lost, for at most `patience_s`. A context manager."""

    def __init__(self, path: Path | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self.path = path or default_socket()
        self._patience_s = patience_s
        self._connection: LocalClient | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def submit(self, submission: Submission) -> dict[str, Any]:
        """The request, noted on disk. Submitted once, also where the stager is killed meanwhile: by its key."""
        if not submission.key:
            submission = msgspec.structs.replace(submission, key=f"auto-{secrets.token_hex(16)}")
        answer = self._call({"op": "submit", "submission": msgspec.to_builtins(submission)})
        value: dict[str, Any] = answer["request"]
        return value

    def status(
        self, ids: Sequence[int] | None = None, job_id: str | None = None, *, explain: bool = False
    ) -> list[dict[str, Any]]:
        return self._requests({"op": "status", "ids": _list(ids), "job_id": job_id, "explain": explain})

    def cancel(self, ids: Sequence[int] | None, job_id: str | None = None) -> list[dict[str, Any]]:
        return self._requests({"op": "cancel", "ids": _list(ids), "job_id": job_id})

    def wait(
        self,
        ids: Sequence[int] | None,
        job_id: str | None = None,
        *,
        timeout_s: float | None = None,
        report: Callable[[list[dict[str, Any]]], None] = lambda requests: None,
        explain: bool = False,
    ) -> list[dict[str, Any]]:
        """The requests once all are final, or after `timeout_s`. `report` is called with them about every second."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        if ids is None:
            ids = [each["id"] for each in self.status(None, job_id)]
        while True:
            left = POLL_S if until is None else min(POLL_S, max(0.0, until - time.monotonic()))
            found = self._requests({"op": "wait", "ids": _list(ids), "timeout_s": left, "explain": explain})
            report(found)
            if all(each["state"] in FINAL for each in found):
                return found
            if until is not None and time.monotonic() >= until:
                return found

    def _requests(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(asked)["requests"]
        return found

    def _call(self, asked: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(asked).encode("ascii")
        until = time.monotonic() + self._patience_s
        while True:
            try:
                if self._connection is None:
                    self._connection = LocalClient(self.path)
                self._connection.send(line)
                answer = self._connection.receive(ANSWER_S)
                if answer is None:
                    raise Unreachable(
                        f"{self.path}: the stager does not answer for {ANSWER_S:.0f} s: is its disk hung?"
                    )
                break
            except (LocalRpcError, OSError, EOFError) as error:
                self._drop()
                if time.monotonic() + PAUSE_S >= until or "serves it: trust only" in str(error):
                    raise Unreachable(
                        str(error)
                        if isinstance(error, LocalRpcError)
                        else f"{self.path}: the stager disconnects"
                    ) from None
                time.sleep(PAUSE_S)
        value = json.loads(answer)
        if "error" in value:
            raise KINDS.get(value.get("kind", ""), StagingError)(value["error"])
        result: dict[str, Any] = value
        return result

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _list(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)
