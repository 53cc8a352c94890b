"""The process of a path between namespaces: `python -m waystage.worlds.lab.wan.daemon`, its order on stdin.

Arrives: an `Order` as msgpack on stdin, its length first; later a byte that says that the path is to stay; SIGTERM.
Leaves: a line on stdout, `ready` or `error: ...`; a path until it ends.
Must not know: who gave the order.

Where whoever gave the order dies before it says that the path is to stay, the path ends: its devices go with this process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from waystage._native import EmulatedPath, WanPathError
from waystage.worlds.lab.wan.order import Order
from waystage.worlds.lab.wan.places import DEVICE, Places
from waystage.worlds.lab.wan.profile import native
from waystage.worlds.lab.wan.serving import Serving, first_in_line, listen, work

STAY = b"s"


def main() -> int:
    stdin = sys.stdin.buffer
    size = int.from_bytes(stdin.read(4), "big")
    order = msgspec.msgpack.decode(stdin.read(size), type=Order)
    Places(order.name).note_process()
    try:
        with first_in_line():
            path = EmulatedPath.join(
                order.namespaces,
                (DEVICE, DEVICE),
                native(order.profile, "forward"),
                native(order.profile, "back"),
                work(order.profile),
            )
        listener = listen(Path(order.folder))
    except (WanPathError, OSError) as error:
        return _say(f"error: {error}")
    _say("ready")
    if stdin.read(1) != STAY:
        return 1
    serving = Serving(path, order.profile, {"name": order.name, "kind": "namespaces"})
    with listener, serving.until_told():
        serving.serve(listener)
    path.end()
    return 0


def _say(line: str) -> int:
    """Tell whoever started this, and let go of the pipe."""
    try:
        os.write(1, line.encode() + b"\n")
    except BrokenPipeError:
        pass  # killed meanwhile: nobody will say that the path is to stay
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return 1


if __name__ == "__main__":
    sys.exit(main())
