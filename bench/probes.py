"""Packets lost and duplicated while paths are switched a hundred times.

The paper's cluster is brought up with a controller that separates links. Probes of 1,000 packets a second
cross it on every ordered pair of hosts, in class mpi and in class staging, while a job's staging is
announced to begin and to end: each announcement moves all traffic, OFF -> ON -> OFF. Lost and duplicated
packets are counted exactly. The peers are the same probes without a switch-over, and through the same
switch-overs with the paper's per-pair rules.

Where the machine cannot carry all streams at once they take turns in groups, each through all
switch-overs. A group's streams must reach 95 % of their rate; packets that a receive buffer of the
machine dropped make the run invalid.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from _switch_overs import SwitchOvers, switch_overs

from waystage._native import LossMeter, LossMeterError, LossReport, LossStream
from waystage.bench import BenchError, BenchOptions
from waystage.events import RuleStyle, TrafficClass
from waystage.interconnect.graphml import read_topology
from waystage.interconnect.marks import DEFAULT_MARKS
from waystage.machine import CpuWatch
from waystage.stats import median, percentile
from waystage.topology import Topology
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

RATE_PPS = 1000
SWITCH_OVERS = 100
REACHED_SHARE = 0.95
"""A group whose streams sent less than this share of their packets was too large for the machine."""

LEAST_IDLE_PCT = 10.0
"""A trial that leaves less than this measures the CPU once a controller works beside it."""

PAUSE_S = 0.02
"""Between switch-overs, so that packets cross in every state and not only in the change."""

PORTS: dict[TrafficClass, int] = {"mpi": 9100, "staging": 9101}
DSCP = {mark.traffic: mark.dscp for mark in DEFAULT_MARKS if mark.dscp is not None}
JOB = "probes"
TAKES_S = 240, 40


@dataclass(frozen=True)
class Flow:
    """One stream of probes; `traffic` is the class it is marked as."""

    source: str
    target: str
    traffic: TrafficClass


@dataclass
class Counts:
    """Sums over groups of streams."""

    sent: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    refused: int = 0
    skipped: int = 0
    overflowed: int = 0
    slowest_pps: float = float("inf")
    p99_ms: list[float] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)

    def add(self, flows: Sequence[Flow], report: LossReport) -> None:
        for flow, stream in zip(flows, report.streams, strict=True):
            self.sent += stream.sent
            self.lost += stream.lost
            self.duplicated += stream.duplicated
            self.reordered += stream.reordered
            self.refused += stream.refused
            self.skipped += stream.skipped
            self.slowest_pps = min(self.slowest_pps, stream.sent / report.sending_s)
            self.losses += [
                {"source": flow.source, "target": flow.target, "class": flow.traffic, "first": f, "count": c}
                for f, c in stream.loss_runs
            ]
        self.overflowed += report.overflowed
        self.p99_ms.append(report.latency_p99_ns / 1e6)


def flows_of(topology: Topology) -> list[Flow]:
    """Every ordered pair of hosts in class mpi and in class staging; with the storage host all is staging."""
    hosts = [host.name for host in topology.hosts]
    storage = set(topology.storage_hosts)
    flows = []
    for source, target in itertools.permutations(hosts, 2):
        if not {source, target} & storage:
            flows.append(Flow(source, target, "mpi"))
        flows.append(Flow(source, target, "staging"))
    return flows


def groups_of(flows: Sequence[Flow], count: int) -> list[list[Flow]]:
    """`count` groups of nearly equal size, each a mixture of sources, targets and classes."""
    return [list(flows[start::count]) for start in range(count)]


def run(options: BenchOptions) -> dict[str, Any]:
    count = options.repetitions or (10 if options.quick else SWITCH_OVERS)
    found = _measure("labelled", options.part("labelled", 0.0, 1.0 if options.quick else 0.6), count)
    if not options.quick:
        part = options.part("per-pair", 0.6, 1.0)
        per_pair = _measure("per-pair", part, count, groups=found["details"]["groups"])
        found["peers"] |= {
            "per_pair_lost": per_pair["figures"]["lost"],
            "per_pair_duplicated": per_pair["figures"]["duplicated"],
            "per_pair_sent": per_pair["details"]["sent"],
            "per_pair_switch_over_median_ms": per_pair["details"]["switch_over_median_ms"],
        }
    return found


def _measure(
    style: RuleStyle, options: BenchOptions, count: int, groups: int | None = None
) -> dict[str, Any]:
    """One rule style, in a new lab."""
    topology = read_topology("paper")
    options.progress("starting cluster and controller", 0.02)
    with Lab("probes", topology) as lab:
        start_controller(lab, f"link-separation:style={style}")
        with switch_overs(lab) as announcer:
            announcer.notifier.job_started(JOB, topology.compute_hosts[:3])
            return _Bench(lab, announcer, options).measure(flows_of(topology), count, groups)


class _Bench:
    """The lab with everything open."""

    def __init__(self, lab: Lab, announcer: SwitchOvers, options: BenchOptions) -> None:
        self._lab = lab
        self._announcer = announcer
        self._options = options
        self._switch_ms: list[float] = []

    def measure(self, flows: Sequence[Flow], switch_overs: int, count: int | None) -> dict[str, Any]:
        """In `count` groups, or in the fewest that the machine carries."""
        trials, groups = self._find_groups(flows) if count is None else ([], groups_of(flows, count))
        moved, rest = Counts(), Counts()
        for index, group in enumerate(groups):
            self._options.progress(
                f"probes, group {index + 1} of {len(groups)}", 0.1 + 0.9 * index / len(groups)
            )
            with self._probing(group, moved):
                began = time.monotonic()
                for on in (True, False) * switch_overs:
                    self._switch_ms.append(self._announcer.switch(JOB, on=on)[1])
                    time.sleep(PAUSE_S)
                took = time.monotonic() - began
            with self._probing(group, rest):
                time.sleep(took)
        slow = min(moved.slowest_pps, rest.slowest_pps) < REACHED_SHARE * RATE_PPS
        busy = bool(trials) and trials[-1]["idle_pct"] < LEAST_IDLE_PCT
        return {
            "figures": {"lost": moved.lost, "duplicated": moved.duplicated},
            "peers": {"lost_without_switching": rest.lost, "duplicated_without_switching": rest.duplicated},
            "details": {
                "valid": not slow and not busy and moved.overflowed == 0,
                "streams": len(flows),
                "groups": len(groups),
                "streams_at_once": max(len(group) for group in groups),
                "trials": trials,
                "rate_wanted_pps": RATE_PPS,
                "rate_reached_pps": round(moved.slowest_pps, 1),
                "switch_overs_each_group": switch_overs,
                "switch_over_median_ms": round(median(self._switch_ms), 3),
                "switch_over_p99_ms": round(percentile(self._switch_ms, 99), 3),
                "sent": moved.sent,
                "sent_without_switching": rest.sent,
                "reordered": moved.reordered,
                "reordered_without_switching": rest.reordered,
                "latency_p99_ms": round(max(moved.p99_ms), 3),
                "latency_p99_ms_without_switching": round(max(rest.p99_ms), 3),
                "refused_by_sender": moved.refused,
                "skipped_by_sender": moved.skipped,
                "overflowed_in_receiver": moved.overflowed,
                "losses": moved.losses[:50],
            },
        }

    def _find_groups(self, flows: Sequence[Flow]) -> tuple[list[dict[str, Any]], list[list[Flow]]]:
        """The fewest groups that the machine carries, found by trying the largest first."""
        trials: list[dict[str, Any]] = []
        for count in (1, 2, 3, 4, 6, 8, 12, 18, 24, len(flows)):
            self._options.progress(f"trying {count} group(s) of streams", 0.05)
            groups = groups_of(flows, count)
            found = Counts()
            with CpuWatch() as cpu, self._probing(groups[0], found):
                time.sleep(0.5 if self._options.quick else 2.0)
            trial = {
                "groups": count,
                "streams": len(groups[0]),
                "rate_reached_pps": round(found.slowest_pps, 1),
                "lost": found.lost,
                "overflowed": found.overflowed,
                "idle_pct": round(cpu.idle_pct, 1),
            }
            trials.append(trial)
            carried = (
                found.slowest_pps >= REACHED_SHARE * RATE_PPS and not found.lost and not found.overflowed
            )
            # Where other work leaves too little for streams one by one, packets are counted all the same.
            if carried and (cpu.idle_pct >= LEAST_IDLE_PCT or count == len(flows)):
                return trials, groups
        raise BenchError(f"this machine carries not even one stream of probes at {RATE_PPS} packets a second")

    @contextmanager
    def _probing(self, flows: Sequence[Flow], into: Counts) -> Iterator[None]:
        """Probe while the body runs, and add what became of the packets to `into`."""
        try:
            meter = LossMeter([self._stream(flow) for flow in flows])
            unreached = meter.warm_up(10.0)
        except LossMeterError as error:
            raise BenchError(f"probes: {error}") from error
        if unreached:
            flow = flows[unreached[0]]
            raise BenchError(
                f"{len(unreached)} of {len(flows)} streams find no path, "
                f"the first from {flow.source} to {flow.target} in class {flow.traffic}"
            )
        meter.start()
        try:
            yield
        finally:
            report = meter.stop(drain_s=2.0)
        into.add(flows, report)

    def _stream(self, flow: Flow) -> LossStream:
        return LossStream(
            source=self._lab.host_ip(flow.source),
            source_namespace=self._lab.resources.namespace(flow.source),
            target=self._lab.host_ip(flow.target),
            target_namespace=self._lab.resources.namespace(flow.target),
            port=PORTS[flow.traffic],
            dscp=DSCP.get(flow.traffic, 0),
            rate_pps=RATE_PPS,
        )
