"""Which requests start next: a pure decision over the queue.

Arrives: the requests that are not final, limits, the time.
Leaves: the requests to start, in order; why each of the others waits.
Must not know: SQLite, processes.

Users are served in turn: of those with a request that may start, the one with the fewest running engines is next, and
among equals the one whose last engine was started the longest ago. The same rule then chooses among the user's jobs. In
a job, the request that is due first is first, then the one submitted first.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import msgspec

from waystage.staging.requests import Place, Request, places

FAR_FUTURE_NS = 2**63


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas. `bytes_per_user` counts the bytes of a user's requests that are not final, 0 for no limit."""

    engines: int = 8
    engines_per_user: int = 4
    requests_per_user: int = 1000
    bytes_per_user: int = 0
    finished_per_user: int = 1000
    retain_s: float = 7 * 86400.0
    retry_for_s: float = 86400.0


class Decision(msgspec.Struct, frozen=True):
    """Ids to start now, in order; `reasons` says of each other waiting request why it waits."""

    start: tuple[int, ...]
    reasons: dict[int, str]
    wake_ns: int


def decide(
    open_requests: Sequence[Request],
    limits: Limits,
    now_ns: int,
    last_start: Mapping[tuple[int, str], int],
    blocked: Mapping[int, str] = {},
) -> Decision:
    """What may start now. `last_start` maps (uid, job id), and (uid, "") for the user, to the time of the last start.

    `blocked` are requests that must not start yet, with the reason. `wake_ns` is when the earliest request that only
    waits for its time may start.
    """
    running = [each for each in open_requests if each.state == "running"]
    engines = collections.Counter(each.uid for each in running)
    of_job = collections.Counter((each.uid, each.submission.job_id) for each in running)
    reasons: dict[int, str] = {}
    candidates: dict[int, dict[str, list[Request]]] = {}
    wake = FAR_FUTURE_NS
    conflicts = _conflicts(open_requests)
    for each in open_requests:
        if each.state != "queued":
            continue
        if each.id in blocked:
            reasons[each.id] = blocked[each.id]
        elif each.id in conflicts:
            reasons[each.id] = conflicts[each.id]
        elif each.not_before_ns > now_ns:
            wake = min(wake, each.not_before_ns)
            reasons[each.id] = each.reason
        else:
            jobs = candidates.setdefault(each.uid, {})
            jobs.setdefault(each.submission.job_id, []).append(each)
    for jobs in candidates.values():
        for waiting in jobs.values():
            waiting.sort(key=lambda r: (r.submission.due_ns or FAR_FUTURE_NS, r.id), reverse=True)
    started = dict(last_start)
    chosen: list[int] = []
    while candidates and len(running) + len(chosen) < limits.engines:
        free = [uid for uid in candidates if engines[uid] < limits.engines_per_user]
        if not free:
            break
        uid = min(free, key=lambda u: (engines[u], started.get((u, ""), 0), u))
        jobs = candidates[uid]
        job = min(jobs, key=lambda j: (of_job[uid, j], started.get((uid, j), 0), jobs[j][-1].id))
        chosen.append(jobs[job].pop().id)
        engines[uid] += 1
        of_job[uid, job] += 1
        started[uid, ""] = started[uid, job] = now_ns + len(chosen)
        if not jobs[job]:
            del jobs[job]
        if not jobs:
            del candidates[uid]
    for uid, jobs in candidates.items():
        mine = engines[uid] >= limits.engines_per_user
        why = (
            f"{limits.engines_per_user} engines of this user are running, as many as allowed"
            if mine
            else f"all {limits.engines} engines are in use"
        )
        reasons |= {each.id: why for waiting in jobs.values() for each in waiting}
    return Decision(tuple(chosen), reasons, wake)


class _Names:
    """Places by name, to find one that is a given place, contains it or is below it."""

    def __init__(self) -> None:
        self._exact: dict[Place, int] = {}
        self._above: dict[Place, int] = {}

    def add(self, place: Place, number: int) -> None:
        self._exact.setdefault(place, number)
        for each in _and_above(place):
            self._above.setdefault(each, number)

    def overlapping(self, place: Place) -> int | None:
        """The request that was added first under such a name, or None."""
        found = [self._exact[each] for each in _and_above(place) if each in self._exact]
        if place in self._above:
            found.append(self._above[place])
        return min(found, default=None)


def _and_above(place: Place) -> list[Place]:
    parts = [part for part in place.path.split("/") if part]
    return [Place(place.host, "/".join(parts[:count])) for count in range(len(parts) + 1)]


def _conflicts(open_requests: Sequence[Request]) -> dict[int, str]:
    """Requests that wait for an earlier one of the same user, in the order of ids.

    It waits where the earlier one writes what it reads or writes, or reads what it writes. Requests of different users
    do not wait for each other, because a name costs nothing: the lock of the copy's journal keeps them apart.
    """
    found: dict[int, str] = {}
    earlier: dict[int, tuple[_Names, _Names]] = {}
    for each in sorted(open_requests, key=lambda r: r.id):
        if each.submission.dry_run:
            continue
        read, written = earlier.setdefault(each.uid, (_Names(), _Names()))
        source, destination = (Place(p.host, p.path.strip("/")) for p in places(each.submission))
        if each.state == "queued":
            for names, place, why in (
                (written, destination, "writes to the same destination"),
                (written, source, "writes this source"),
                (read, destination, "reads this destination"),
            ):
                other = names.overlapping(place)
                if other is not None:
                    found[each.id] = f"waits for request {other}, which {why}"
                    break
        read.add(source, each.id)
        written.add(destination, each.id)
    return found
