"""A recorded run as a feed: all its frames in the history.

Arrives: a folder that `waystage run` wrote.
Leaves: a feed whose history spans the run.
Must not know: HTTP, pages.

docs/reference/results.md describes the folder. It may come from elsewhere: what is damaged or newer is an error that
names the file, and sizes are bounded.
"""

from __future__ import annotations

import datetime
import heapq
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from waystage.events import (
    CLASSES,
    Envelope,
    Event,
    EventError,
    LinkUse,
    PathsChanged,
    PortUse,
    TrafficClass,
    decode,
)
from waystage.experiment import results
from waystage.experiment.results import ResultError, RunResult
from waystage.experiment.timelines import PortSample
from waystage.view.feed import About, Feed
from waystage.view.history import SERIES
from waystage.view.model import ViewModel

FRAMES_MS = 100, 1_000
"""The least time between two frames, and that of a run whose links were counted once a second or that was long."""

HISTORY_BYTES = 256 << 20

MOST_BYTES = 2 << 30
"""Of a file of events."""

NEAR_NS = 2_000_000_000
"""The start of a run is recorded in seconds; a switch-over in both files says it more exactly."""


def load(folder: Path) -> Feed:
    """Raises ResultError."""
    result = run_of(folder)
    path = folder / results.EVENTS_FILE
    items = sorted(read_events(path), key=lambda item: item.time_ns)  # of several publishers
    begun_ns = start_ns(result, items)
    samples = list(results.load_timelines(folder))
    step = frame_ms(samples)
    feed = Feed(
        About(
            title=f"{result.name} ({result.world})",
            mode="recorded",
            epoch=bool(result.started),
            note="; ".join(result.invalid),
        ),
        model=ViewModel(sets=True),
        history_bytes=HISTORY_BYTES,
        steps_ms=(step, 10 * step, 60 * step),
    )
    for (policy, number), at_s in sorted(_sets(result).items(), key=lambda entry: entry[1]):
        feed.mark(begun_ns // 1_000_000 + round(at_s * 1e3), f"{policy}, set {number + 1}")
    uses = link_uses(samples, begun_ns)
    replay(feed, heapq.merge(items, uses, key=lambda item: item.time_ns), frame_ns=step * 1_000_000)
    return feed


def run_of(folder: Path) -> RunResult:
    """The result of a comparison of policies. Raises ResultError."""
    result = results.read(folder)
    if not isinstance(result, RunResult):
        raise ResultError(
            f"{folder}: is of a sweep or contention study, which has no events to view: give a run of policies"
        )
    return result


def frame_ms(samples: Sequence[PortSample]) -> int:
    """The time between frames that shows each interval of the counters, where the history has room for them."""
    least, most = FRAMES_MS
    if not samples:
        return least
    shortest_ms = min(max(sample.interval_s, 0.0) for sample in samples) * 1e3
    span_ms = max(sample.at_s for sample in samples) * 1e3
    return min(most, max(least, int(shortest_ms), math.ceil(span_ms / SERIES)))


def replay(feed: Feed, items: Iterable[Envelope], frame_ns: int = FRAMES_MS[0] * 1_000_000) -> None:
    """Make the frames of these events, which are in order of their times."""
    due = 0
    last = 0
    for item in items:
        if item.time_ns >= due:
            feed.take(last)
            due = item.time_ns - item.time_ns % frame_ns + frame_ns
        feed.apply((item,))
        last = item.time_ns
    feed.take(last)


def read_events(path: Path) -> Iterator[Envelope]:
    """One envelope a line. Raises ResultError with the line."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise ResultError(f"{path}: has more than {MOST_BYTES >> 30} GiB: give a shorter run")
            for number, line in enumerate(file, 1):
                try:
                    yield decode(line)
                except EventError as error:
                    raise ResultError(
                        f"{path}:{number}: is damaged: {error}: copy the folder again, or run the experiment again"
                    ) from None
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}: give the folder that `waystage run` wrote") from None


def link_uses(samples: Iterable[PortSample], start_ns: int) -> Iterator[Envelope]:
    """The samples of one time as one event. A port without a sample sent nothing: it is said once that it was idle."""
    by_time: dict[tuple[float, float], dict[tuple[str, int], dict[str, int]]] = {}
    for sample in samples:
        ports = by_time.setdefault((sample.at_s, sample.interval_s), {})
        ports.setdefault((sample.node, sample.port), {})[sample.traffic] = max(0, sample.bytes)
    busy: set[tuple[str, int]] = set()
    before_s = after_s = 0.0
    for (at_s, interval_s), ports in sorted(by_time.items()):
        if busy and at_s - interval_s > before_s + after_s / 2:  # a gap, in which no port sent anything
            idle = tuple(PortUse(node=node, port=port, bytes=0) for node, port in sorted(busy))
            yield _use(idle, after_s, start_ns + round((before_s + after_s) * 1e9))
            busy = set()
        before_s, after_s = at_s, interval_s
        uses = [PortUse(node=node, port=port, bytes=0) for node, port in sorted(busy - ports.keys())]
        busy = set(ports)
        for (node, port), counts in ports.items():
            by_class: dict[TrafficClass, int] = {c: counts[c] for c in CLASSES if c in counts}
            total = counts.get("all", sum(by_class.values()))
            uses.append(PortUse(node=node, port=port, bytes=total, by_class=by_class))
        yield _use(tuple(uses), interval_s, start_ns + round(at_s * 1e9))


def _use(ports: tuple[PortUse, ...], interval_s: float, time_ns: int) -> Envelope:
    event: Event = LinkUse(interval_ns=max(0, round(interval_s * 1e9)), ports=ports)
    return Envelope(event=event, event_id="", time_ns=time_ns)


def start_ns(result: RunResult, items: list[Envelope]) -> int:
    """When the run began; 0 in simulated time."""
    if not result.started:
        return 0
    try:
        moment = datetime.datetime.fromisoformat(result.started)
    except ValueError:
        raise ResultError(f"started {ascii(result.started)[:40]}: is no time") from None
    rough = round(moment.timestamp() * 1e9)
    if result.switch_overs:
        since_ns = round(result.switch_overs[0].at_s * 1e9)
        for item in items:
            if isinstance(item.event, PathsChanged) and 0 <= item.time_ns - since_ns - rough < NEAR_NS:
                return item.time_ns - since_ns
    return rough


def _sets(result: RunResult) -> dict[tuple[str, int], float]:
    """When each set began."""
    found: dict[tuple[str, int], float] = {}
    for job in result.jobs:
        key = (job.policy, job.set)
        found[key] = min(found.get(key, job.submitted_at_s), job.submitted_at_s)
    return found
