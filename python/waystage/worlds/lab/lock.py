"""The lock and the owner of a lab: one process at a time, known also after it was killed.

Arrives: a lab's name.
Leaves: a lock while a lab is changed or owned, and a record of the owner on disk.
Must not know: what a lab consists of.

The lock ends with its holder, also when that is killed. The record stays, and tells a later `up` or `down`
that what it finds was left behind: the owner's process id with its start time no longer lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from waystage.outputs import write_whole
from waystage.worlds.lab.errors import LabBusy, LabError
from waystage.worlds.lab.processes import KILL_PATIENCE_S, ProcessId, boot_id

_POLL_SECONDS = 0.01


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """`kept` labs were brought up by a command that has ended: they have no owner and stay until `down`."""

    process: ProcessId
    phase: Literal["starting", "up"] = "starting"
    kept: bool = False
    boot_id: str = ""
    unmount_netns: bool = False
    """Whether this lab's first namespace made /run/netns a mount, which the last one should undo."""

    @classmethod
    def me(cls, *, kept: bool, unmount_netns: bool) -> Owner:
        return cls(process=_me(), kept=kept, boot_id=boot_id(), unmount_netns=unmount_netns)

    @property
    def alive(self) -> bool:
        """Whether the lab is in use: its owner lives, or it was made to outlive its maker."""
        if self.boot_id != boot_id():
            return False
        return self.process.alive or (self.kept and self.phase == "up")

    def write(self, path: Path) -> None:
        """Completely or not at all."""
        write_whole(path, msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Owner | None:
        """None where there is no record, or none that can be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None


class LabLock:
    """The lock of one lab; a context manager. Raises LabBusy at once where another living process holds it.

    A process that is killed while it starts another leaves the lock to that child until its execve(2), which closes
    the file; until then a dead holder's lock is waited for.
    """

    def __init__(self, path: Path, lab: str) -> None:
        self._path = path
        self._lab = lab
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def take(self) -> None:
        deadline = time.monotonic() + KILL_PATIENCE_S
        while self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue  # a holder that let go removed the folder meanwhile
            except OSError as error:
                raise LabError(f"the lock {self._path} cannot be taken: {error.strerror}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(fd)
                os.close(fd)
                if holder is not None and not holder.alive and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                    continue
                raise LabBusy(
                    f"lab '{self._lab}' is held by process {holder.pid if holder else '(unknown)'}: "
                    "wait for it to end, or use another name (--name; in an experiment, lab.name)"
                ) from None
            try:
                current = os.stat(self._path).st_ino == os.fstat(fd).st_ino
            except FileNotFoundError:
                current = False
            if (
                not current
            ):  # removed by the holder before us: the lock is on a file that no other process sees
                os.close(fd)
                continue
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(_me()), 0)
            self._fd = fd

    def release(self) -> None:
        if self._fd is None:
            return
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None
        try:
            self._path.parent.rmdir()
        except OSError:
            pass  # other labs are there

    def __enter__(self) -> LabLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _me() -> ProcessId:
    process = ProcessId.of(os.getpid())
    assert process is not None, "a running process has an entry in /proc"
    return process


def _holder(fd: int) -> ProcessId | None:
    """Whom the lock's file names; None where its holder has not written it yet, or it cannot be read."""
    try:
        return msgspec.json.decode(os.pread(fd, 256, 0), type=ProcessId)
    except msgspec.MsgspecError:
        return None
