"""The process of a path between namespaces: `python -m waystage.worlds.lab.wan.daemon`, its order on stdin.

Arrives: an `Order` as msgpack on stdin, its length first; later a byte that says that the path is to stay; SIGTERM.
Leaves: a line on stdout, `ready` or `error: ...`; a path until it ends.
Must not know: who gave the order.

Where whoever gave the order dies before it says that the path is to stay, the path ends: its devices go with this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from waystage._native import EmulatedPath, WanPathError
from waystage.worlds.lab.daemons import READY, read_order, report
from waystage.worlds.lab.wan.order import Order
from waystage.worlds.lab.wan.places import DEVICE, Places
from waystage.worlds.lab.wan.profile import native
from waystage.worlds.lab.wan.serving import Serving, first_in_line, listen, work

STAY = b"s"


def main() -> int:
    order = msgspec.msgpack.decode(read_order(), type=Order)
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
