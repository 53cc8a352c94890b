"""Facts about jobs that have not reached a controller yet: kept on disk, delivered in order.

Arrives: starts and ends of jobs.
Leaves: the same, in order, each until it has been delivered; the jobs that count as running.
Must not know: Slurm, backplanes.

A folder holds `incoming/NAME`, a line that a hook has left; `spool/NUMBER.json`, a fact each; `running/JOB`, a file
for each job that has started and not ended; and `held/JOB` for a job whose stage-in failed, so that the epilog, which Slurm runs all the same, stages nothing out.
A fact is on disk before a hook goes on, so that neither a controller that is away nor a killed slurmctld loses it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from waystage.jobs.hostlist import expand
from waystage.outputs import written

LEFT_OVER = (".in", ".out", ".nodes", ".new", ".told")
"""Ends of the names of files beside a record, which a killed hook leaves."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A job of `user` has started on `nodes`, or has ended where `nodes` is empty."""

    job_id: str
    nodes: tuple[str, ...] = ()
    user: str = ""


class FactStore:
    """Raises OSError where the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool, self._running = folder / "spool", folder / "running"
        self._held, self._incoming = folder / "held", folder / "incoming"
        for each in (self._spool, self._running, self._held, self._incoming):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, fact: Fact) -> None:
        """Keep a fact for delivery. A repeated one is delivered twice, which does no harm."""
        if not fact.job_id.isdigit():
            raise ValueError(f"{ascii(fact.job_id)[:40]} is no job id of Slurm")
        with self._locked():
            number = max((int(path.stem) for path in self._waiting()), default=0) + 1
            with written(self._spool / f"{number:012d}.json", 0o600) as file:
                file.write(msgspec.json.encode(fact))
                file.flush()
                os.fsync(file.fileno())
            mark = self._running / fact.job_id
            if fact.nodes:
                mark.touch()
            else:
                mark.unlink(missing_ok=True)

    def running(self) -> dict[str, float]:
        """job id -> seconds since its start was noted."""
        now = time.time()
        found = {}
        for path in self._running.iterdir():
            try:
                found[path.name] = now - path.stat().st_mtime
            except FileNotFoundError:
                continue
        return found

    def take_in(self) -> int:
        """Add what hooks have left as `incoming/NAME`, `start JOB NODES USER` or `end JOB`, in the order of names; how many."""
        taken = 0
        for path in sorted(p for p in self._incoming.iterdir() if not p.name.startswith(".")):
            words = path.read_text(encoding="ascii", errors="replace").split()
            try:
                nodes = expand(words[2]) if words[0] == "start" else ()
                user = " ".join(words[3:]) if nodes else ""
                self.add(Fact(job_id=words[1], nodes=nodes, user=user))
                taken += 1
            except (IndexError, ValueError):
                path.rename(path.with_name(f".damaged-{path.name}"))
                continue
            path.unlink()
        return taken

    def hold(self, job_id: str) -> None:
        """Note that the job was put back before it began."""
        (self._held / job_id).touch()

    def take_held(self, job_id: str) -> bool:
        """Whether the job was put back before it began; once."""
        try:
            (self._held / job_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def deliver(self, send: Callable[[Fact], object]) -> int:
        """Call `send` with each fact, oldest first; how many were delivered. What `send` raises ends it."""
        done = 0
        with self._locked():
            for path in self._waiting():
                try:
                    fact = msgspec.json.decode(path.read_bytes(), type=Fact)
                except msgspec.MsgspecError:
                    path.rename(path.with_suffix(".damaged"))
                    continue
                send(fact)
                path.unlink()
                done += 1
        return done

    @property
    def waiting(self) -> bool:
        """Whether a fact has not been delivered."""
        return bool(self._waiting())

    def _waiting(self) -> list[Path]:
        return sorted(path for path in self._spool.glob("*.json") if path.stem.isdigit())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
