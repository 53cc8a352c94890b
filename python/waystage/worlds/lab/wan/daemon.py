"""The process of a path between namespaces: `python -m waystage.worlds.lab.wan.daemon`.

Arrives: an `PathConfig` as msgpack on stdin, its length first; later a byte that confirms the path; SIGTERM.
Leaves: a line on stdout, `ready` or `error: ...`; a path until it ends.
Must not know: which command started it.

If the starting process dies before it confirms the path, the path ends: its devices go with this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from waystage._native import EmulatedPath, WanPathError
from waystage.worlds.lab.daemons import READY, read_order, report
from waystage.worlds.lab.wan.control import PathConfig
from waystage.worlds.lab.wan.profile import native
from waystage.worlds.lab.wan.resources import DEVICE, PathResources
from waystage.worlds.lab.wan.serving import Serving, first_in_line, listen, work

STAY = b"s"


def main() -> int:
    order = msgspec.msgpack.decode(read_order(), type=PathConfig)
    PathResources(order.name).note_process()
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
        return report(f"error: {error}")
    report(READY)
    if sys.stdin.buffer.read(1) != STAY:
        return 1
    serving = Serving(path, order.profile, {"name": order.name, "kind": "namespaces"})
    with listener, serving.until_told():
        serving.serve(listener)
    path.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
