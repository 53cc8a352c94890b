"""Engine processes: started as a user, told what to do, read, ended, and recognised after a restart.

Arrives: accounts, moves; lines of engines, which are in their users' hands.
Leaves: reports of bounded size; the end of each process.
Must not know: the queue, quotas.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waystage.staging.errors import StagingError
from waystage.staging.users import Account, rights

MOST_LINE_BYTES = 1 << 20
MOST_STDERR_BYTES = 2000
READ_BYTES = 1 << 16

START_S = 30.0
"""How long the spawner may take to start, to answer, and to end."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Spawner:
    """The process that forks engines; started anew where it died, which its engines do not outlive."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._running: dict[int, Engine] = {}

    def fileno(self) -> int:
        """For a selector, after `ensure`."""
        assert self._socket is not None
        return self._socket.fileno()

    def ensure(self) -> bool:
        """Start it where it does not run; whether that was so. Raises StagingError."""
        if self._socket is not None:
            return False
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-P", "-m", "waystage.staging.spawner", str(its.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()], cwd="/"
            )
        except OSError as error:
            ours.close()
            raise StagingError(f"{sys.executable} cannot be started: {error.strerror}") from None
        finally:
            its.close()
        ours.settimeout(START_S)
        self._socket = ours
        return True

    def start(self, request_id: int, account: Account) -> Engine:
        """An engine that waits for `tell`. Raises StagingError."""
        assert self._socket is not None
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        (child_in, stdin), (stdout, child_out), (stderr, child_err) = pipes
        try:
            socket.send_fds(
                self._socket, [json.dumps(rights(account)).encode("ascii")], [child_in, child_out, child_err]
            )
            while "pid" not in (answer := self._receive()):
                if "error" in answer:
                    raise StagingError(
                        f"an engine of user {account.name} cannot be started: {answer['error']}"
                    )
        except (OSError, EOFError) as error:
            for each in (stdin, stdout, stderr):
                os.close(each)
            raise StagingError(
                f"an engine of user {account.name} cannot be started: {error or 'its starter ended'}"
            ) from None
        finally:
            for each in (child_in, child_out, child_err):
                os.close(each)
        engine = Engine(request_id, answer["pid"], stdin, stdout, stderr, self._kill)
        self._running[engine.pid] = engine
        return engine

    def hear(self) -> bool:
        """Take note of an engine that ended; False where this process itself has ended, and all engines with it."""
        try:
            self._receive()
        except (OSError, EOFError):
            self.close()
            return False
        return True

    def close(self) -> None:
        """End it and its engines."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(START_S)
            self._process.kill()
            self._process.wait()
            self._process = None
        for engine in self._running.values():
            engine.status = -signal.SIGKILL
        self._running = {}

    def _receive(self) -> dict[str, Any]:
        assert self._socket is not None
        data = self._socket.recv(MOST_LINE_BYTES)
        if not data:
            raise EOFError
        value: dict[str, Any] = json.loads(data)
        if "ended" in value:
            engine = self._running.pop(value["ended"], None)
            if engine is not None:
                engine.status = value["status"]
        return value

    def _kill(self, pid: int) -> None:
        # By its parent, which knows whether the process id is still the engine's.
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(json.dumps({"kill": pid}).encode("ascii"))


class Engine:
    """One process. Its descriptors do not block; `stdout` and `stderr` are for a selector."""

    def __init__(
        self, request_id: int, pid: int, stdin: int, stdout: int, stderr: int, kill: Callable[[int], None]
    ) -> None:
        self.request_id, self.pid = request_id, pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.status: int | None = None
        """Its exit status, negative for a signal; None while it runs."""
        self._kill = kill
        for each in (stdin, stdout, stderr):
            os.set_blocking(each, False)
        self._to_send = bytearray()
        self._received = bytearray()
        self._errors = bytearray()
        self._cancelled = False
        self.kill_at: float | None = None

    def tell(self, move: dict[str, Any]) -> None:
        """What to do. A pipe holds 64 KiB; `flush` sends the rest."""
        self._to_send += json.dumps(move).encode("ascii") + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as the pipe takes it."""
        if self._cancelled:
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._to_send:
                del self._to_send[: os.write(self.stdin, self._to_send)]

    def cancel(self) -> None:
        """Ask it to end: it sees end of file."""
        if not self._cancelled:
            self._cancelled = True
            os.close(self.stdin)

    def kill(self) -> None:
        """End it and what it has started."""
        if self.status is None:
            self._kill(self.pid)

    def reports(self) -> tuple[list[dict[str, Any]], bool]:
        """Reports that have arrived, and whether more may follow.

        A line that is too long or no report ends the engine.
        """
        data = _read(self.stdout)
        self._received += data or b""
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        found: list[dict[str, Any]] = []
        for line in lines:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                self.kill()
                return found, False
            found.append(value)
        if len(rest) > MOST_LINE_BYTES:
            self.kill()
            return found, False
        return found, data != b""

    def drain_errors(self) -> bool:
        """Keep the end of what it writes to stderr; whether more may follow."""
        data = _read(self.stderr)
        self._errors = (self._errors + (data or b""))[-MOST_STDERR_BYTES:]
        return data != b""

    def last_words(self) -> str:
        """The last line of its stderr."""
        lines = [line for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def close(self) -> None:
        """Once it has ended."""
        self.cancel()
        os.close(self.stdout)
        os.close(self.stderr)


def _read(descriptor: int) -> bytes | None:
    """What has arrived; None where nothing has, no bytes at the end of the stream."""
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def boot_id() -> str:
    """This boot of the machine: process ids of another mean nothing."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def start_of(pid: int) -> int:
    """When the process was started, in clock ticks since boot: with its id, it names the process. 0 where there is
    none, or one that has ended and was not waited for."""
    try:
        # The name, in parentheses, may hold anything; behind it are the state and, 19 fields later, the start
        # (proc_pid_stat(5)).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def end_orphan(pid: int, start: int, boot: str) -> bool:
    """Kill an engine of a stager that is gone; whether it is gone."""
    if not pid or boot != boot_id() or start_of(pid) != start:
        return True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    return start_of(pid) != start
