"""Starts engines: a small process that forks, and whose child becomes the user before it does anything.

Arrives: accounts, with the descriptors of an engine's stdin, stdout and stderr.
Leaves: process ids, and the status of each engine that ended.
Must not know: requests, the queue.

It has no thread, no open file of the stager's, and all modules of an engine in memory: a fork takes milliseconds, needs
no rights of the user to the interpreter, and leaves the user no process to trace, since one that changed its user
without executing a program is not dumpable (prctl(2), PR_SET_DUMPABLE). It ends with the stager, and its engines with
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from waystage.staging import engine

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_NO_NEW_PRIVS = 1, 15, 38
"""prctl(2)."""

MOST_BYTES = 1 << 16
FAILED = 70
"""EX_SOFTWARE: the change of user failed."""


def main() -> int:
    """Serve the socket on descriptor `argv[1]` until it is closed, as a child of process `argv[2]`."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # For the stager, which then closes the socket.
        signal.signal(number, signal.SIG_IGN)
    engine.preload()
    with socket.socket(fileno=int(sys.argv[1])) as stager:
        serve(stager)
    return 0


def serve(stager: socket.socket) -> None:
    """Until the stager closes the socket: engines that still run are killed then."""
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, _nothing)
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(stager, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is stager:
                    data, descriptors, _, _ = socket.recv_fds(stager, MOST_BYTES, 3)
                    if not data:
                        for pid in children:
                            _kill(pid)
                        return
                    _obey(stager, json.loads(data), descriptors, children)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                children.discard(pid)
                _kill_group(pid)  # what it has started and did not end
                _answer(stager, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that SIGCHLD wakes the selector."""


def _obey(stager: socket.socket, asked: dict[str, Any], descriptors: list[int], children: set[int]) -> None:
    if "kill" in asked:
        if asked["kill"] in children:
            _kill(asked["kill"])
        return
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        _answer(stager, {"error": error.strerror})
        pid = -1
    if pid == 0:
        _become(asked, descriptors, parent)
    for each in descriptors:
        os.close(each)
    if pid > 0:
        children.add(pid)
        _answer(stager, {"pid": pid})


def _answer(stager: socket.socket, value: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        stager.send(json.dumps(value).encode("ascii"))


def _kill(pid: int) -> None:
    _kill_group(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _become(asked: dict[str, Any], descriptors: list[int], parent: int) -> NoReturn:
    """In the child: become the user, then be an engine."""
    status = FAILED
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for target, each in enumerate(descriptors):
            os.dup2(each, target)
        os.closerange(3, 1 << 20)
        os.setsid()
        os.umask(asked["umask"])
        os.chdir("/")
        if os.geteuid() == 0:
            os.setgroups(asked["groups"])
            os.setresgid(asked["gid"], asked["gid"], asked["gid"])
            os.setresuid(asked["uid"], asked["uid"], asked["uid"])
        if os.getresuid() != (asked["uid"],) * 3:
            raise PermissionError("the user could not be changed")
        os.environ.clear()
        os.environ.update(asked["environment"])
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        # After the change of user, which resets it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"waystage-engine", 0, 0, 0)
        status = engine.main()
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


def prctl(option: int, value: int) -> None:
    """prctl(2). Raises OSError."""
    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    if call(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main())
