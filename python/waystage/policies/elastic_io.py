"""`elastic-io`: slow aggregators leave the server map, all at once, and come back.

Arrives: events and the state. Leaves: `SetServerMap`. Must not know: file domains, MPI, worlds.

A collective write is as slow as its slowest aggregator (Isaila et al., "CLARISSE", section V.B). No monitor tells which
one that is: each aggregator's service time per byte is measured and reported. With equal file domains, the m fastest of
them take s(m) / m, where s(m) is the service of the slowest of those. The policy takes the m with the least.

* All aggregators that are equally slow give the least time together: where the storage is slow, nothing is removed.
* Noise and bursts: the last two operations count, for an aggregator that might leave the better of them, for one that
  stays the worse. One is enough where a mistake costs little, that is up to `mistake` of the speed.
* What was left out is tried again when the speed that is lost without it has cost half as much as one more slow
  operation would, and twice as late each time it fails: neither trials nor a burst long past cost much.
* New aggregators are used at once, and those that were lost, when they have been up for a while (`failed-aggregator`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystage.events import Action, AggregatorLost, AggregatorReport, AggregatorStarted, Event, IoCompleted
from waystage.io_state import IoApplication, IoServer
from waystage.policies.base import Explained
from waystage.policies.io_rules import set_servers, stable
from waystage.state import State

TOLERANCE = 1.15
"""Of maps that are nearly as fast the one with the most aggregators is taken: measurements differ by as much."""

RELEVANT = (AggregatorLost, AggregatorReport, AggregatorStarted, IoCompleted)


class ElasticIo:
    """`gain`: how many times shorter an operation must become; `mistake`: the loss of speed that one operation may risk;
    `again`: operations before what was left out is tried again, at least; `stable_s` is as in `failed-aggregator`."""

    name = "elastic-io"
    acts_on = frozenset({"aggregators"})

    def __init__(
        self, gain: float = 1.2, mistake: float = 0.25, again: int = 4, stable_s: float = 10.0
    ) -> None:
        if gain <= 1:
            raise ValueError(f"gain of {gain}: give more than 1")
        if not 0 <= mistake < 1:
            raise ValueError(f"mistake of {mistake}: give 0 up to less than 1")
        if again < 1:
            raise ValueError(f"again of {again}: give at least 1 operation")
        if stable_s < 0:
            raise ValueError(f"stable_s of {stable_s}: give 0 or more")
        self._gain, self._mistake, self._again = gain, mistake, again
        self._stable_ns = round(stable_s * 1e9)

    def __call__(self, event: Event, state: State) -> Sequence[Action]:
        if not isinstance(event, RELEVANT):
            return ()
        names = (
            dict.fromkeys(use.app for use in event.servers)
            if isinstance(event, AggregatorReport)
            else (event.app,)
        )
        actions: list[Action] = []
        reasons: list[str] = []
        for name in names:
            app = state.io.applications.get(name)
            if app is None:
                continue
            wanted, reason = self._wanted(app, state)
            found = list(set_servers(app, wanted))
            actions += found
            if found and reason:
                reasons.append(reason)
        return Explained.by(actions, "; ".join(reasons)) if reasons else actions

    def _wanted(self, app: IoApplication, state: State) -> tuple[list[str], str]:
        """The server map, and why."""
        usable = [
            name for name in app.offered if stable(app.servers[name], state.time_ns, self._stable_ns)
        ] or list(app.offered)
        serving = set(app.serving)
        inside = [name for name in usable if name in serving or not app.servers[name].outs]
        slow = self._slow(app, inside)
        if slow:
            return [name for name in inside if name not in slow], f"{app.app}: {', '.join(slow)} slow"
        back = [
            name
            for name in usable
            if name not in inside and self._may_return(app, app.servers[name], len(inside))
        ]
        reason = f"{app.app}: {', '.join(back)} tried again" if back else ""
        return [name for name in usable if name in inside or name in back], reason

    def _slow(self, app: IoApplication, inside: Sequence[str]) -> list[str]:
        """Those without which an operation is shorter; none where that is not sure."""
        # Reports of one operation come one by one: those of the operation before say nothing beside them.
        measured = {name: found for name in inside if (found := _services(app.servers[name], app.begun_ns))}
        if len(measured) < 2 or 2 * len(measured) < len(inside):
            return []
        for sure in (False, True):
            slow = self._slowest(measured, len(inside), sure=sure)
            if slow:
                return slow
        return []

    def _slowest(self, measured: Mapping[str, Sequence[float]], count: int, *, sure: bool) -> list[str]:
        """`sure`: from two operations of each that leaves; else from the last one, where a mistake costs little."""
        most = {name: max(found) for name, found in measured.items()}
        least = {name: min(found) if sure else found[-1] for name, found in measured.items()}
        order = sorted(measured, key=lambda name: (least[name], name))
        unmeasured = count - len(order)
        now = max(least.values()) / count
        times = {
            kept: max(most[name] if sure else least[name] for name in order[:kept]) / (kept + unmeasured)
            for kept in range(1, len(order))
        }
        best_time = min(times.values())
        best = max(kept for kept, time in times.items() if time <= TOLERANCE * best_time)
        slow = order[best:]
        if times[best] * self._gain > now:
            return []
        if sure:
            return slow if all(len(measured[name]) > 1 for name in slow) else []
        return slow if len(slow) <= self._mistake * count and best_time * 2 <= now else []

    def _may_return(self, app: IoApplication, server: IoServer, inside: int) -> bool:
        """Whether the speed lost without it has cost half of what an operation with it costs, if it is still slow."""
        others = sorted(
            found[-1]
            for name in app.serving
            if name != server.aggregator and (found := _services(app.servers[name]))
        )
        last = server.samples[-1] if server.samples else None
        if last is None or not others:
            return True
        usual = others[len(others) // 2]
        slower = max(1.0, last.busy_ns / last.bytes / usual * inside / (inside + 1)) if usual > 0 else 1.0
        wait = max(float(self._again), (slower - 1) * inside / 2)
        return bool(app.done_op + 1 - server.out_op >= wait * 2 ** min(server.outs - 1, 10))


def _services(server: IoServer, begun_ns: int = 0) -> list[float]:
    """Nanoseconds a byte, of the operation before and of the one that began at `begun_ns`; none without the latter.

    Reports of one operation are one witness: what slows an aggregator for a moment is in all of them. Without a time,
    that of its last report.
    """
    samples = [sample for sample in server.samples if sample.at_ns > server.back_ns]
    now = [sample for sample in samples if sample.at_ns > begun_ns] if begun_ns else samples[-1:]
    if not now:
        return []
    before = [sample for sample in samples if sample.at_ns <= begun_ns][-1:]
    found = [sample.busy_ns / sample.bytes for sample in before]
    return [*found, sum(sample.busy_ns for sample in now) / sum(sample.bytes for sample in now)]
