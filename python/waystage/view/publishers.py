"""Controllers and agents: who is there and who is gone.

Arrives: publishers that come and go; types of events that they publish.
Leaves: a row for each name.
Must not know: the backplane, frames.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from waystage.view.frames import Row

KEPT = 1200
"""Names; short-lived publishers such as `notify` go first."""

ROLES = {
    "Decided": "controller",
    "TopologyChanged": "controller",
    "PathsChanged": "controller",
    "LinkUse": "controller",
    "FlowsListed": "agent",
}
"""What publishes such an event is one of these."""


class Publisher(msgspec.Struct):
    """Publishers of one name: their incarnations that are there now, and since when that is so, in ms."""

    role: str = "publisher"
    present: set[str] = set()
    since: int = 0


class Publishers:
    """`mark` is called with a name whose row has changed or is gone."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        self.known: dict[str, Publisher] = {}
        self._mark = mark

    def seen(self, source: str, present: bool, time_ns: int) -> None:
        """A publisher has appeared or is gone."""
        name = name_of(source)
        known = self.known.setdefault(name, Publisher())
        (known.present.add if present else known.present.discard)(source)
        known.since = time_ns // 1_000_000
        self._mark(name)
        while len(self.known) > KEPT:
            spare = next((n for n, p in self.known.items() if p.role == "publisher"), None)
            gone = spare if spare is not None else next(iter(self.known))
            del self.known[gone]
            self._mark(gone)

    def published(self, source: str, type_name: str) -> None:
        """It has published an event of this type."""
        role = ROLES.get(type_name)
        if role is None or not source:
            return
        known = self.known.setdefault(name_of(source), Publisher())
        if known.role not in (role, "controller"):
            known.role = role
            self._mark(name_of(source))

    def row(self, name: str) -> Row | None:
        known = self.known.get(name)
        if known is None:
            return None
        return {"role": known.role, "present": len(known.present), "since": known.since}

    @property
    def controllers(self) -> set[str]:
        return {name for name, known in self.known.items() if known.role == "controller"}


def name_of(source: str) -> str:
    """The name of a publisher without the digits of its incarnation."""
    return source.rpartition(".")[0] or source
