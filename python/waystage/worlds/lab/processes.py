"""Processes: whether one still lives, which live in given network namespaces, and ending them.

Arrives: process ids, start times, namespace files.
Leaves: facts from /proc; ended processes.
Must not know: what the processes do.

A process id alone names a process only while it lives; with its start time (proc(5), field 22) it
names it until the machine starts anew, and with the id of the boot for good. Ending goes through pidfds, so that a reused
id is never hit. A record says of whom it speaks; only a process of the same user is believed to be that one.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

_POLL_SECONDS = 0.01

KILL_PATIENCE_S = 10.0
"""After SIGKILL a process is gone at once, but for one of low priority on a machine with no time for it."""


class ProcessId(msgspec.Struct, frozen=True):
    """A process for good: `start` is in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """None where there is no such process, or only its zombie."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The name, in parentheses, may hold spaces and parentheses itself.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    @property
    def halted(self) -> bool:
        """Whether SIGSTOP has halted it: it lives, and does nothing."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"


class RecordedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process as a file keeps it, for a later command."""

    process: ProcessId
    boot_id: str

    @classmethod
    def me(cls) -> RecordedProcess:
        process = ProcessId.of(os.getpid())
        assert process is not None, "a running process has an entry in /proc"
        return cls(process=process, boot_id=boot_id())

    @property
    def alive(self) -> bool:
        """Whether that very process lives, and belongs to the user who asks."""
        if not self.boot_id or self.boot_id != boot_id() or not self.process.alive:
            return False
        try:
            owner = os.stat(f"/proc/{self.process.pid}").st_uid
        except OSError:
            return False
        return owner == os.geteuid()


def boot_id() -> str:
    """Differs from boot to boot; empty where the machine does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def ask_to_end(process: ProcessId) -> None:
    """SIGTERM to that very process, and to none where it has ended."""
    fd = _pidfd(process.pid)
    if fd is None:
        return
    try:
        if process.alive:  # looked up again now that the pidfd pins the process the id means
            _signal(fd, signal.SIGTERM)
    finally:
        os.close(fd)


def in_namespaces(files: Iterable[Path]) -> list[int]:
    """Ids of the processes whose network namespace is one of these files."""
    wanted = set()
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        wanted.add((status.st_dev, status.st_ino))
    return [pid for pid in _pids() if _net_namespace(pid) in wanted] if wanted else []


def own_children(mark: str) -> list[int]:
    """Children of this process that were started with `mark`, NAME=VALUE, in their environment."""
    found, own = [], os.getpid()
    for pid in _pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) != own:
                continue
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def end_all(find: Callable[[], list[int]], grace_s: float) -> list[int]:
    """End what `find` finds, again and again until it finds nothing: SIGTERM, and SIGKILL after `grace_s`.

    Returns what still lives after that, which only a process in uninterruptible sleep does.
    """
    deadline = time.monotonic() + grace_s
    own = os.getpid()
    left: list[int] = []
    asked: set[int] = set()
    while time.monotonic() < deadline + KILL_PATIENCE_S:
        left = [pid for pid in find() if pid != own]
        if not left:
            return []
        hard = time.monotonic() >= deadline
        fds = {pid: fd for pid in left if (fd := _pidfd(pid)) is not None}
        try:
            still = set(find())
            for pid, fd in fds.items():
                # Looked up again now that the pidfd pins the process the id means.
                if pid in still and (hard or pid not in asked):
                    _signal(fd, signal.SIGKILL if hard else signal.SIGTERM)
                    asked.add(pid)
            _wait_gone(list(fds.values()), min(0.2, max(deadline - time.monotonic(), _POLL_SECONDS)))
        finally:
            for fd in fds.values():
                os.close(fd)
    return left


def end(process: ProcessId, grace_s: float = 1.0) -> None:
    """End one process."""
    end_all(lambda: [process.pid] if process.alive else [], grace_s)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and termination: an incomplete clean-up is worse than a late one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _net_namespace(pid: int) -> tuple[int, int] | None:
    try:
        status = os.stat(f"/proc/{pid}/ns/net")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _signal(fd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass  # gone meanwhile


def _wait_gone(fds: list[int], timeout_s: float) -> None:
    """Return once all have ended, or after the timeout. A pidfd becomes readable when its process ends."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    waiting = set(fds)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
