"""The client of Slurm's hooks: one process and one connection for all requests of a hook.

Arrives: submissions as JSON; the socket of the staging service.
Leaves: requests that have ended; one sentence where one failed.
Must not know: Slurm, directives, the command line of `waystage`.

Hooks run this file as a program, by an isolated interpreter without site-packages: it imports a few modules of the
standard library and starts with 0.03 s of processor time, where `waystage stage` takes 0.13 s and was called twice
(docs/decisions/0058-slurm-hook-client.md).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

if __name__ == "__main__":  # an isolated interpreter does not know the package; its own modules come first
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from pathlib import Path

from waystage.local_client import LocalClient, LocalRpcError

SITE_SOCKET = "/run/waystage/stager.sock"

PATIENCE_S = 60.0
"""How long the staging service may be away, as while it is restarted."""

LOOK_S = 2.0
"""The same, where a person waits."""

PAUSE_S = 0.2
ANSWER_S = 60.0
WAIT_S = 3000.0
"""One wait at the staging service, which allows 3,600 s; it is asked again after it."""

MOST_BYTES = 16 << 20
FINAL = ("done", "failed", "cancelled")


class HookError(RuntimeError):
    """A request that was refused or has failed; the message is one sentence."""


class Away(HookError):
    """The staging service does not answer."""


def program() -> tuple[str, ...]:
    """The words by which a hook runs this file."""
    return (sys.executable, "-IS", os.path.abspath(__file__))


class Stager:
    """Calls to the staging service at `path`, which may be restarted meanwhile."""

    def __init__(self, path: str = "", *, patience_s: float = PATIENCE_S) -> None:
        self._path = Path(path or os.environ.get("WAYSTAGE_STAGER") or SITE_SOCKET)
        self._patience_s = patience_s
        self._connection: LocalClient | None = None

    def submit(self, submissions: Sequence[dict[str, Any]]) -> list[tuple[int, bool]]:
        """Ids of requests that are on the service's disk, and whether each was known by its key. Raises HookError.

        What was submitted before a refusal stays: submitted again, its keys find it.
        """
        found = []
        for each in submissions:
            answer = self.call({"op": "submit", "submission": each})
            found.append((answer["request"]["id"], bool(answer.get("repeated"))))
        return found

    def wait(self, ids: Sequence[int]) -> None:
        """Until all have ended. Raises HookError with the first that did not succeed."""
        while True:
            asked = {"op": "wait", "ids": list(ids), "timeout_s": WAIT_S}
            found = self.call(asked, answer_s=WAIT_S + ANSWER_S)["requests"]
            for each in found:
                if each["state"] in ("failed", "cancelled"):
                    raise HookError(f"request {each['id']}: {each['error']}")
            if all(each["state"] in FINAL for each in found):
                return

    def cancel_stage_in(self, job_id: str) -> None:
        """Cancel the job's stage-ins that have not ended. Raises HookError."""
        asked = {"op": "status", "job_id": job_id, "ids": None}
        try:
            found = self.call(asked)["requests"]
        except Away:
            raise
        except HookError:
            return  # no request of this job is known
        ids = [each["id"] for each in found if each["direction"] == "in" and each["state"] not in FINAL]
        if ids:
            self.call({"op": "cancel", "ids": ids})

    def wait_stage_out(self, job_id: str) -> None:
        """Until the job's known stage-outs have ended. Raises HookError where there is none, or one failed."""
        found = self.call({"op": "status", "job_id": job_id, "ids": None})["requests"]
        ids = [each["id"] for each in found if each["direction"] == "out"]
        if not ids:
            raise HookError(f"no stage-out of job {job_id} is known: submit it by hand, `waystage stage out`")
        self.wait(ids)

    def call(self, asked: dict[str, Any], *, answer_s: float = ANSWER_S) -> dict[str, Any]:
        """The answer, by a new connection where the old one was lost. Raises HookError."""
        line = json.dumps(asked).encode("ascii")
        until = time.monotonic() + self._patience_s
        while True:
            try:
                if self._connection is None:
                    self._connection = LocalClient(self._path)
                self._connection.send(line)
                answer = self._connection.receive(answer_s)
                if answer is None:
                    raise Away(f"{self._path}: the staging service does not answer: is its disk hung?")
                break
            except (LocalRpcError, OSError, EOFError) as error:
                self._connection = None
                untrusted = "serves it: trust only" in str(error)
                if untrusted or time.monotonic() + PAUSE_S >= until:
                    raise Away(str(error) or f"{self._path}: the staging service disconnects") from None
                time.sleep(PAUSE_S)
        value: dict[str, Any] = json.loads(answer)
        if "error" in value:
            raise HookError(value["error"])
        return value


def transfer(stager: Stager, submissions: Sequence[dict[str, Any]], record: str) -> None:
    """Submit, and wait for the end. Where the file `record` is gone meanwhile, the job was cancelled: so are its requests.

    A hook that cancels removes the file first, so that one of both sees the other. Raises HookError.
    """
    ids = [number for number, _ in stager.submit(submissions)]
    if not os.path.exists(record):
        stager.call({"op": "cancel", "ids": ids})
        raise HookError("the job was cancelled")
    stager.wait(ids)


def progress(stager: Stager, job_id: str) -> str:
    """A line for each request; no path and no user, since Slurm 22.05 does not say who asks."""
    found = stager.call({"op": "status", "job_id": job_id or None, "ids": None})["requests"]
    names = ("id", "job_id", "direction", "state", "bytes_done", "bytes_total")
    lines = ["request job direction state bytes_done bytes_total"]
    lines += [" ".join(str(each[name]) for name in names) for each in found]
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """`transfer RECORD` with submissions on stdin, `again JOB`, `cancel JOB`, `progress [JOB]`, or `who`."""
    try:
        operation, rest = words[0], words[1:]
        if operation == "transfer":
            text = sys.stdin.buffer.read(MOST_BYTES).decode("utf-8", "surrogateescape")
            transfer(Stager(), json.loads(text), rest[0])
        elif operation == "again":
            Stager().wait_stage_out(rest[0])
        elif operation == "cancel":
            Stager().cancel_stage_in(rest[0])
        elif operation == "progress":
            _say(sys.stdout, progress(Stager(patience_s=LOOK_S), rest[0] if rest else ""))
        elif operation == "help":
            _say(sys.stdout, "transfer RECORD, again JOB, cancel JOB, progress [JOB], who")
        else:
            _say(sys.stdout, json.dumps(Stager(patience_s=LOOK_S).call({"op": "who"})))
    except HookError as error:
        _say(sys.stderr, str(error))
        return 1
    return 0


def _say(stream: TextIO, text: str) -> None:
    """In UTF-8: slurmctld has no locale."""
    stream.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
