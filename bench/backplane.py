"""Latency of the backplane, locally and through three tiers; events lost across a controller's death.

Arrives: nothing but options; starts real processes with real sessions in a scratch folder.
Leaves: local_p99_ms, tiers_p99_ms, lost_events; the peer is a plain Zenoh session.
Must not know: policies, switches.

Latency is one way, from before `publish` to the subscriber's callback, by the clock of the one machine, at a rate far
below saturation; each measurement starts new processes. For the tiers the subscriber is connected to the global
controller's socket: four processes are between it and the publisher's call. Events are counted in the journal of the
controller, by publisher and number, after it was killed with SIGKILL and restarted, and killed once more at the end: a
controller that ends takes a snapshot, and keeps 10,000 events.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from waystage.backplane import Backplane, BackplaneConfig
from waystage.bench import BenchOptions, Figures, own_process, take_turns
from waystage.events import JobFinished, JobStarted
from waystage.stats import median, percentile

RATE_HZ = 500.0
"""Events a second: a busy site's scheduler makes a few; well below the 10,000 that one process can publish."""

AGENTS, AGENT_PROCESSES = 1000, 4
EVENTS_PER_AGENT = 10
SECONDS = 12.0
"""How long the agents publish; the controller is killed twice meanwhile."""
TAKES_S = 240, 30


def run(options: BenchOptions) -> dict[str, Any]:
    """Figures: local_p99_ms (bar 1), tiers_p99_ms (bar 10), lost_events (bar 0)."""
    count = 300 if options.quick else 2500
    with tempfile.TemporaryDirectory(prefix="waystage-bench-") as name:
        folder = Path(name)
        ways = {"local": _local, "tiers": _tiers, "zenoh": _plain}
        contestants = {way: partial(_latency, measure, folder / way, count) for way, measure in ways.items()}
        turns = take_turns(options.part("latency", 0.0, 0.6), contestants, turns=5)
        options.progress("1,000 agents while the controller is killed", 0.6)
        lost = _lost(folder / "lost", *((100, 1) if options.quick else (AGENTS, 2)))
    return {
        "figures": {
            "local_p99_ms": turns.median("local", "p99_ms"),
            "tiers_p99_ms": turns.median("tiers", "p99_ms"),
            "lost_events": lost["lost"],
        },
        "peers": {"zenoh_p99_ms": turns.median("zenoh", "p99_ms")},
        "details": turns.details() | {"events_per_turn": count, "rate_hz": RATE_HZ, "lost": lost},
    }


# -- latency --------------------------------------------------------------------------------------


def _latency(measure: Callable[[Path, int], list[float]], folder: Path, count: int, turn: int) -> Figures:
    place = folder / str(turn)
    place.mkdir(parents=True)
    times = measure(place, count)
    return {"p99_ms": percentile(times, 99), "median_ms": median(times)}


def _local(folder: Path, count: int) -> list[float]:
    """Publisher here, subscriber in another process that listens."""
    endpoint = f"unixsock-stream/{folder}/local.sock"
    with _child("subscribe", "listen", endpoint, str(count)) as child:
        _ready(child)
        with Backplane.open(BackplaneConfig(name="bench", connect=(endpoint,))) as publisher:
            return _send(publisher, child, count)


def _tiers(folder: Path, count: int) -> list[float]:
    """Publisher at the node controller, subscriber at the global controller, application controller between."""
    sockets = {tier: f"unixsock-stream/{folder}/{tier}.sock" for tier in ("global", "application", "node")}
    with ExitStack() as stack:
        above = None
        for tier, endpoint in sockets.items():
            stack.enter_context(_controller(folder / tier, tier, endpoint, above))
            above = endpoint
        child = stack.enter_context(_child("subscribe", "connect", sockets["global"], str(count)))
        _ready(child)
        config = BackplaneConfig(name="bench", connect=(sockets["node"],))
        publisher = stack.enter_context(Backplane.open(config))
        publisher.publish(JobFinished(job_id="warm"), confirm=True, timeout=20.0)
        return _send(publisher, child, count)


def _send(publisher: Backplane, child: _Child, count: int) -> list[float]:
    _paced(count, lambda number: publisher.publish(JobStarted(job_id=str(number), nodes=("c1", "c2", "c3"))))
    times = json.loads(_line(child))
    if len(times) != count:
        raise RuntimeError(f"the subscriber got {len(times)} of {count} events")
    return list(times)


def _paced(count: int, send: Callable[[int], object]) -> None:
    time.sleep(0.5)  # until the subscription is known everywhere
    due = time.perf_counter()
    for number in range(count):
        send(number)
        due += 1.0 / RATE_HZ
        time.sleep(max(0.0, due - time.perf_counter()))


def _plain(folder: Path, count: int) -> list[float]:
    """The peer: the same bytes over bare Zenoh sessions, without numbering, replay or decoding."""
    import zenoh

    endpoint = f"unixsock-stream/{folder}/plain.sock"
    with _child("plain", endpoint, str(count)) as child:
        _ready(child)
        with zenoh.open(_plain_settings("client", "connect", endpoint)) as session:
            filler = b" " * 200
            _paced(count, lambda _: session.put("bench/plain", time.time_ns().to_bytes(8, "big") + filler))
            return list(json.loads(_line(child)))


def _plain_settings(mode: str, side: str, endpoint: str) -> Any:
    import zenoh

    settings = zenoh.Config()
    settings.insert_json5("mode", json.dumps(mode))
    settings.insert_json5("scouting/multicast/enabled", "false")
    settings.insert_json5("scouting/gossip/enabled", "false")
    settings.insert_json5(f"{side}/endpoints", json.dumps([endpoint]))
    return settings


# -- loss -----------------------------------------------------------------------------------------


def _lost(folder: Path, agents: int, kills: int) -> dict[str, Any]:
    """Agents publish while the controller is killed `kills` times; the journal then shows what it has."""
    folder.mkdir()
    endpoint = f"unixsock-stream/{folder}/global.sock"
    seconds = SECONDS * agents / AGENTS + 3.0 * kills
    share = agents // AGENT_PROCESSES
    down_s: list[float] = []
    with ExitStack() as stack:
        controller = stack.enter_context(_controller(folder / "state", "global", endpoint, None))
        children = [
            stack.enter_context(_child("agents", endpoint, str(i * share), str(share), str(seconds)))
            for i in range(AGENT_PROCESSES)
        ]
        for child in children:
            _ready(child)
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for _ in range(kills):
            time.sleep(seconds / (kills + 1))
            controller.kill()
            controller.wait()
            killed = time.monotonic()
            controller = stack.enter_context(_controller(folder / "state", "global", endpoint, None))
            down_s.append(time.monotonic() - killed)
        unconfirmed = 0
        for child in children:
            unconfirmed += int(_line(child))
        controller.kill()  # one that ends by itself lets go of the oldest events that it has
        controller.wait()
    found = _journalled(folder / "state" / "journal.db")
    wanted = {f"agent{a}-{n}" for a in range(share * AGENT_PROCESSES) for n in range(EVENTS_PER_AGENT)}
    return {
        "lost": len(wanted - found.keys()),
        "doubled": sum(number > 1 for number in found.values()),
        "unconfirmed": unconfirmed,
        "published": len(wanted),
        "agents": share * AGENT_PROCESSES,
        "kills": kills,
        "down_s": down_s,
    }


def _journalled(path: Path) -> Counter[str]:
    """How often each job's start is in the journal.

    Raises RuntimeError where the journal has begun to let old events go: they would count as lost.
    """
    from waystage.controllers import Journal

    journal = Journal(path)
    try:
        if journal.restore().state is not None:
            raise RuntimeError(
                f"{path} holds a snapshot instead of its oldest events: they cannot be counted"
            )
        return Counter(item.event.job_id for item in journal.events() if isinstance(item.event, JobStarted))
    finally:
        journal.close()


# -- processes ------------------------------------------------------------------------------------


class _Child(subprocess.Popen[str]):
    """A process that is killed at the end of its `with` statement."""

    def __exit__(self, *_: object) -> None:
        self.kill()
        super().__exit__(None, None, None)


def _child(*arguments: str) -> _Child:
    return _Child(own_process(__file__, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _controller(state: Path, tier: str, endpoint: str, above: str | None) -> _Child:
    argv = [sys.executable, "-m", "waystage", "controller", "--tier", tier, "--listen", endpoint]
    argv += ["--state-dir", str(state), *(["--connect", above] if above else [])]
    child = _Child(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    _ready(child)
    return child


def _line(child: _Child) -> str:
    """The next line that it prints."""
    assert child.stdout is not None
    return child.stdout.readline()


def _ready(child: _Child) -> None:
    if not _line(child).startswith("ready"):
        raise RuntimeError(f"{child.args!r} did not start")


class _Latencies:
    """Collects the latency of each event, in ms, and prints them when all have come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._times: list[float] = []
        self._done = threading.Event()

    def add(self, sent_ns: int) -> None:
        self._times.append((time.time_ns() - sent_ns) / 1e6)
        if len(self._times) == self._count:
            self._done.set()

    def report(self) -> None:
        print("ready", flush=True)
        self._done.wait(60 + self._count / RATE_HZ)
        print(json.dumps(self._times), flush=True)


def _subscriber(side: str, endpoint: str, count: int) -> None:
    found = _Latencies(count)
    config = BackplaneConfig(name="subscriber", **{side: (endpoint,)})  # type: ignore[arg-type]
    with Backplane.open(config) as backplane:
        backplane.subscribe("JobStarted", lambda item: found.add(item.time_ns))
        found.report()


def _plain_subscriber(endpoint: str, count: int) -> None:
    import zenoh

    found = _Latencies(count)
    with zenoh.open(_plain_settings("router", "listen", endpoint)) as session:
        session.declare_subscriber(
            "bench/plain", lambda sample: found.add(int.from_bytes(bytes(sample.payload)[:8], "big"))
        )
        found.report()


def _agents(endpoint: str, first: int, count: int, seconds: float) -> None:
    """`count` node agents, each with its own session, publishing at different times."""
    agents = [
        Backplane.open(
            BackplaneConfig(name=f"agent{n}", scope=f"node{n}", connect=(endpoint,), connect_timeout_s=30)
        )
        for n in range(first, first + count)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    step = seconds / (count * EVENTS_PER_AGENT)
    for number in range(EVENTS_PER_AGENT):
        for index, agent in enumerate(agents):
            agent.publish(JobStarted(job_id=f"{agent.config.name}-{number}", nodes=()))
            due = started + (number * count + index + 1) * step
            time.sleep(max(0.0, due - time.monotonic()))
    print(sum(not agent.confirm_published(timeout=60.0) for agent in agents), flush=True)
    for agent in agents:
        agent.close()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "subscribe":
        _subscriber(rest[0], rest[1], int(rest[2]))
    elif role == "plain":
        _plain_subscriber(rest[0], int(rest[1]))
    else:
        _agents(rest[0], int(rest[1]), int(rest[2]), float(rest[3]))
