"""Declare an event of your own, publish it, and wait for it. Needs neither root nor a server.

python examples/own_event.py
"""

from __future__ import annotations

import sys

from waystage.backplane import Backplane
from waystage.events import Event


class ReactorHot(Event, frozen=True, kw_only=True):
    """Registered by its class name: every Waystage process that imports this module can read it."""

    reactor: str
    celsius: float


def main() -> int:
    with Backplane.open() as backplane:
        # Begin to collect before publishing: `wait` answers with events since then.
        backplane.watch("ReactorHot", reactor="north")
        backplane.publish(ReactorHot(reactor="south", celsius=350.0))
        backplane.publish(ReactorHot(reactor="north", celsius=412.5))
        found = backplane.wait("ReactorHot", timeout=5.0, reactor="north")
    if found is None or not isinstance(found.event, ReactorHot):
        print("nothing arrived within 5 seconds", file=sys.stderr)
        return 1
    print(f"{found.event.reactor}: {found.event.celsius} degrees, event {found.seq} of {found.source}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
