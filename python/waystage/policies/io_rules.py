"""What policies of collective I/O share: actions only where they change something, leases, and the learnt gain.

Arrives: applications, the state. Leaves: actions. Must not know: which order a policy prefers, worlds.

A schedule makes applications wait, which has a cost. `Scheduling` therefore stands aside until the first operations of
two applications have met, and after that where they lose nothing by it. What they lose is measured: the share of the time that
operations in progress had, by their number and weights, beside the time that they take alone. It is the same where the
storage is divided without a loss, less where one application cannot use it all. Then nothing is gained by waiting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from waystage.events import (
    Action,
    AggregatorReport,
    Event,
    GrantIo,
    IoApplicationFinished,
    IoApplicationStarted,
    IoCompleted,
    IoRequested,
    SetServerMap,
)
from waystage.io_state import IoApplication, IoServer
from waystage.state import State

RELEVANT = (AggregatorReport, IoApplicationFinished, IoApplicationStarted, IoCompleted, IoRequested)

STICKS = 1.1
"""A schedule in force ends only where the gain of sharing is that much larger: measurements differ a little."""

INTERRUPTED = 1e-3
"""Weight of an operation that lets another pass: it still moves, so that no connection and no lease ends."""


def set_servers(app: IoApplication, servers: Sequence[str]) -> Iterator[Action]:
    """At most one action: none where they serve already. All that are offered is said by none at all."""
    if not servers or set(servers) == set(app.serving) & set(app.offered):
        return
    whole = set(servers) == set(app.offered)
    yield SetServerMap(app=app.app, aggregators=() if whole else tuple(servers))


def stable(server: IoServer, time_ns: int, stable_ns: int) -> bool:
    """Whether it has been up long enough to be used: at its first start at once, then twice as long after each loss."""
    return not server.losses or time_ns - server.up_ns >= stable_ns * 2 ** min(server.losses - 1, 10)


def remaining_ns(app: IoApplication, state: State, going: Sequence[IoApplication]) -> float:
    """How long the operation still takes without others, as far as is known; `going` are in progress now."""
    whole = sum(other.weight for other in going)
    part = app.weight / whole if whole else 1.0
    passed = app.share_ns + (state.time_ns - app.share_at_ns) * part if app.going_on else 0.0
    return max(0.0, state.io.alone_ns(app, app.op_bytes) - passed)


def gain_of_sharing(apps: Sequence[IoApplication]) -> float | None:
    """How many times faster the storage is with several operations than with one; None where that is not measured.

    1: divided without a loss. Below: they disturb each other. Above: one alone does not use it all.
    """
    alone, shared = 0.0, 0
    for app in apps:
        if app.alone.bytes and app.shared.share_ns:
            alone += app.alone.ns_per_byte * app.shared.bytes
            shared += app.shared.share_ns
    return alone / shared if shared else None


class Scheduling(ABC):
    """A policy that decides which applications are in an operation; a subclass has a `name` and `choose`.

    `lease_s`: how long a grant and a wait last without a word of the controller. `shortest_s`: applications whose
    operations are shorter are left alone, since a grant takes milliseconds. `aside`: the gain of sharing from which
    nothing is scheduled. `learn`: let the first operations that meet go on, to measure it.
    """

    name = "io-scheduling"
    acts_on = frozenset({"grants"})

    def __init__(
        self, lease_s: float = 30.0, shortest_s: float = 0.1, aside: float = 1.1, learn: bool = True
    ) -> None:
        if not 1 <= lease_s <= 60:
            raise ValueError(
                f"lease_s of {lease_s}: give 1 to 60 s, since no agent lets an application wait longer"
            )
        if shortest_s < 0:
            raise ValueError(f"shortest_s of {shortest_s}: give 0 or more")
        if aside <= 0:
            raise ValueError(f"aside of {aside}: give more than 0")
        self._lease_ns = round(lease_s * 1e9)
        self._shortest_ns, self._aside, self._learn = round(shortest_s * 1e9), aside, learn

    @abstractmethod
    def choose(
        self, going: Sequence[IoApplication], waiting: Sequence[IoApplication], state: State
    ) -> Mapping[str, float]:
        """Weights of those that go on, in or into an operation; who is left out of `waiting` waits, and who is left out
        of `going` keeps its weight. `waiting` is in the order of their requests."""

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if not isinstance(event, RELEVANT):
            return ()
        actions: list[Action] = []
        for group in self._groups(state):
            actions += self._schedule(group, state) if self._is_worth_it(group) else self._free(group)
        return actions

    def _groups(self, state: State) -> list[list[IoApplication]]:
        """Applications on the same storage; those of short operations, each for itself."""
        groups: dict[str, list[IoApplication]] = {}
        for app in state.io.applications.values():
            short = 0 < app.took_ns < self._shortest_ns
            groups.setdefault(f"alone {app.app}" if short else app.storage, []).append(app)
        known = [name for name in groups if name and not name.startswith("alone ")]
        if len(known) == 1 and "" in groups:  # those that have not written yet: they may be on it too
            groups[known[0]] += groups.pop("")
        return list(groups.values())

    def _is_worth_it(self, group: Sequence[IoApplication]) -> bool:
        if len(group) < 2:
            return False
        if not self._learn:
            return True
        if not any(app.shared.operations for app in group):
            return False  # the first that meet are let go on: it costs nothing, and shows what it costs
        gain = gain_of_sharing(group)
        scheduled = any(app.wanted.until_ns for app in group)
        return gain is None or gain <= self._aside * (STICKS if scheduled else 1.0)

    def _free(self, group: Sequence[IoApplication]) -> Iterator[Action]:
        for app in group:
            if app.wanted.until_ns:
                yield GrantIo(app=app.app, weight=1.0, until_ns=0)

    def _schedule(self, group: Sequence[IoApplication], state: State) -> Iterator[Action]:
        now = state.time_ns
        going = [app for app in group if app.going_on]
        waiting = sorted(
            (app for app in group if app.in_io and not app.going_on),
            key=lambda app: (app.requested_ns, app.app),
        )
        held = [app for app in going if self._holds(app, now)]
        chosen = self.choose(held, waiting, state) if going or waiting else {}
        if not going and not waiting:
            chosen = {_next(group, now).app: 1.0}
        for app in group:
            weight = chosen.get(app.app, app.wanted.weight if app.going_on else 0.0)
            if app.going_on and app.wanted.weight == weight:
                continue
            if app.wanted.weight != weight or app.wanted.until_ns - now < self._lease_ns // 2:
                yield GrantIo(app=app.app, weight=weight, until_ns=now + self._lease_ns)

    def _holds(self, app: IoApplication, now: int) -> bool:
        """Whether what goes on still counts: of one that hangs nothing is written, and none waits for it."""
        return now - max(app.granted_ns, app.moved_ns) < self._lease_ns


def _next(group: Sequence[IoApplication], now: int) -> IoApplication:
    """Of applications that compute, the one to have its grant before it asks, so that it need not wait: the one that has
    it already, else the one whose next phase is expected first."""
    standing = [app for app in group if app.wanted.weight > 0 and app.wanted.until_ns > now]
    return min(standing or group, key=lambda app: (app.last_phase_ns + app.period_ns, app.app))
