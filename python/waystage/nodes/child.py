"""A process that makes runs, so that a run that loops can be ended and a crash harms no other.

Arrives: on standard input, length-prefixed pickles: the import path, the loaded sweep, then combinations.
Leaves: on what was standard output, the same way: progress and finished runs.
Must not know: which other runs there are, files.

Started as `python -m waystage.simulate.worker` by `workers`. What an algorithm prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
import time
from typing import IO, Any

HEAD = struct.Struct("<Q")
"""Length of the pickle that follows."""

PROGRESS_S = 0.2
"""A message of progress at most this often."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


def send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Raises EOFError at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    (length,) = HEAD.unpack(head)
    return pickle.loads(stream.read(length))


def main() -> None:
    parent = os.getppid()
    # A worker in an endless loop never sees that its parent is gone; the kernel does.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        sys.path[:] = receive(commands)
        function = receive(commands)
        shared = receive(commands)
        _serve(commands, answers, function, shared)
    except (EOFError, BrokenPipeError):
        return


def _serve(commands: IO[bytes], answers: IO[bytes], function: Any, shared: Any) -> None:
    send(answers, ("ready", None))
    while True:
        item = receive(commands)
        last = time.monotonic()

        def tick(at: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= PROGRESS_S:
                last = now
                send(answers, ("at", at))

        send(answers, ("done", function(shared, item, tick)))


if __name__ == "__main__":
    main()
