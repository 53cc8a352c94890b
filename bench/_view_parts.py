"""Processes of `bench view`: a publisher, a server of a large site, a day of history."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

from waystage import events
from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import Envelope, Event
from waystage.interconnect.generate import leaf_spine
from waystage.topology import Topology
from waystage.view.feed import About, Feed
from waystage.view.model import ViewModel
from waystage.view.serving import Options, Serving

ROUND = 10
"""Events that are made together: two flows begin, two end, four report, a job begins and one ends."""


def mix(n: int, job_id: str) -> list[Event]:
    """The events of round `n`."""
    told: list[Event] = []
    for flow in (2 * n, 2 * n + 1):
        told.append(
            events.FlowStarted(
                flow_id=f"node1:{flow}", traffic="staging", engine="copy", job_id=job_id, bytes=1 << 30
            )
        )
    for flow in range(2 * n - 2, 2 * n + 2):
        use = events.FlowUse(
            flow_id=f"node1:{flow}", bytes_done=n << 10, rate_bps=10**8, limited_by="network"
        )
        told.append(events.FlowProgress(agent="node1", flows=(use,)))
    told += [
        events.FlowFinished(flow_id=f"node1:{flow}", bytes_done=1 << 30) for flow in (2 * n - 8, 2 * n - 7)
    ]
    told += [events.JobStarted(job_id=job_id, nodes=("h1", "h2"), user="ada")]
    told += [events.JobFinished(job_id=f"{n - 20}")]
    return told


def publish(endpoint: str, per_s: int, seconds: int) -> None:
    """Publish at a steady rate after a line on stdin; then print what was sent."""
    with Backplane.open(BackplaneConfig(name="bench", listen=(endpoint,))) as backplane:
        print("listening", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        count, n, jobs = 0, 0, []
        control: Counter[str] = Counter()
        rounds = per_s * seconds // ROUND
        while n < rounds:
            due = begun + n * ROUND / per_s
            ahead = due - time.monotonic()
            if ahead > 0.001:
                time.sleep(ahead)
            job_id = f"{n}"
            for event in mix(n, job_id):
                backplane.publish(event)
                count += 1
                if not event.telemetry:
                    control[type(event).__name__] += 1
            jobs.append(job_id)
            n += 1
        took = time.monotonic() - begun
        print(json.dumps({"events": count, "seconds": took, "jobs": jobs, "control": control}), flush=True)
        sys.stdin.readline()  # what was missed may be asked for again


def changes(topology: Topology, per_s: int, draw: random.Random) -> Iterator[events.LinkUse]:
    """For ever: the use of as many links as change in 100 ms."""
    links = topology.links
    while True:
        ports = []
        for link in draw.sample(links, max(1, per_s // 10)):
            by = {name: draw.randrange(0, link.capacity_bps // 80) // 2 for name in ("mpi", "staging", "io")}
            node, port = (link.a, link.a_port) if draw.random() < 0.5 else (link.b, link.b_port)
            ports.append(events.PortUse(node=node, port=port, bytes=sum(by.values()), by_class=by))  # type: ignore[arg-type]
        yield events.LinkUse(interval_ns=100_000_000, ports=tuple(ports))


def large(hosts: int) -> Topology:
    return leaf_spine(hosts // 32, 32, 8, storage_hosts=0)


def site(hosts: int, per_s: int, collapse_above: int) -> None:
    """Serve a site on which links change, jobs run and flows move, until stdin ends."""
    topology = large(hosts)
    feed = Feed(About(title="bench", mode="live"), model=ViewModel(collapse_above=collapse_above))
    number = 0

    def tell(*told: Event) -> None:
        nonlocal number
        for event in told:
            number += 1
            feed.apply(
                (Envelope(event=event, event_id=f"{number}", source="bench.1", time_ns=time.time_ns()),)
            )

    names = [host.name for host in topology.hosts]
    tell(events.TopologyChanged(topology=topology))
    tell(*(events.JobStarted(job_id=f"{n}", nodes=tuple(names[8 * n : 8 * n + 8])) for n in range(40)))
    serving = Serving(feed, time.time_ns, Options(listen="127.0.0.1:0"))

    def change() -> None:
        for n, use in enumerate(changes(topology, per_s, random.Random(1))):
            tell(use)
            tell(*(events.JobFinished(job_id=f"{n // 10}"), events.JobStarted(job_id=f"{n // 10 + 40}", nodes=(names[n % 1000],))) if n % 10 == 0 else ())  # fmt: skip
            time.sleep(0.1)

    threading.Thread(target=change, daemon=True).start()
    with serving.in_thread():
        print(serving.link, flush=True)
        sys.stdin.readline()


def day(seconds: int, hosts: int, per_s: int) -> None:
    """Keep frames of that time, one a second; print the memory of this process."""
    import resource

    topology = large(hosts)
    feed = Feed(About(title="bench", mode="live"))
    number = 0
    draw = random.Random(1)
    uses = changes(topology, 10 * per_s, draw)
    begun = time.monotonic()
    start_s = 1_700_000_000
    feed.apply((Envelope(event=events.TopologyChanged(topology=topology), event_id="0", source="bench.1"),))
    for second in range(seconds):
        told: list[Event] = [next(uses)]
        if second % 10 == 0:
            n = second // 10
            told += [
                events.JobStarted(job_id=f"{n}", nodes=("h1", "h2")),
                events.JobFinished(job_id=f"{n - 40}"),
            ]
            told += mix(n, f"{n}")
        now = (start_s + second) * 1_000_000_000
        items = []
        for event in told:
            number += 1
            items.append(Envelope(event=event, event_id=f"{number}", source="bench.1", time_ns=now))
        feed.apply(items)
        feed.take(now)
    span = feed.history.span
    assert span is not None
    asked = [span[0] + (span[1] - span[0]) * n // 50 for n in range(50)]
    looked = time.monotonic()
    for t in asked:
        feed.at(t)
    at_ms = 1000 * (time.monotonic() - looked) / len(asked)
    found = {
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "history_mib": round(feed.history.size / 2**20, 1),
        "hours": round((span[1] - span[0]) / 3.6e6, 2),
        "seconds": round(looked - begun, 1),
        "frame_of_a_time_ms": round(at_ms, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "publish":
        publish(words[0], int(words[1]), int(words[2]))
    elif what == "site":
        site(*map(int, words))
    else:
        day(*map(int, words))
