"""How long a switch-over takes, from the event to the last switch's answer.

The paper's cluster is brought up with a controller that separates links. A job's staging is announced to
begin (OFF -> ON) and to end (ON -> OFF), again and again, each time waiting for the change. Measured
from the publication of the event on the backplane to the last barrier reply, in the parts of the
paper's Fig. 14: notification processor (backplane, journal, policy), path search and rule planning, and
installation. Style `labelled` with 1 and with 100 running jobs, and style `per-pair`, the paper's own,
with the paper's two jobs of three nodes, take turns.

`plan_p99_ms` is the planner alone (`_plan_times.py`): fold, decision, rules and their difference, with 1,000 running
jobs on 1,024 hosts and no switch.

The peers are the per-pair style of the same run, and the paper's own figures on its eight-node testbed.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from _plan_times import plan_times
from _switch_overs import SwitchOvers, switch_overs

from waystage.bench import BenchOptions
from waystage.events import PathsChanged
from waystage.interconnect.graphml import read_topology
from waystage.stats import median, percentile
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

SWITCH_OVERS = 200
"""ON and OFF each, in every variant: with fewer than 100 the 99th percentile is the slowest one."""

ROUNDS = 2
"""Each style gets its controller this many times, so that a slow moment of the machine meets both."""

PLANNED_JOBS = 1_000
NODES_PER_JOB = 3
STOP_TIMEOUT_S = 20.0
PAPER_S = {
    "on": 2.20,
    "off": 0.31,
    "on_processor": 0.0085,
    "on_path_search": 0.17,
    "on_flow_entries": 2.01,
}
"""Seed 000, section V.C and Fig. 14."""
TAKES_S = 120, 25


@dataclass
class Times:
    """One direction of one variant: the whole and its parts, in ms, and what was sent."""

    total: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    planner: list[float] = field(default_factory=list)
    install: list[float] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)

    def add(self, change: PathsChanged) -> None:
        parts = (change.processor_ns / 1e6, change.planner_ns / 1e6, change.install_ns / 1e6)
        for kept, part in zip((self.processor, self.planner, self.install), parts, strict=True):
            kept.append(part)
        self.total.append(sum(parts))
        self.messages.append(change.messages)

    def p99(self) -> float:
        return round(percentile(self.total, 99), 3)

    def details(self) -> dict[str, Any]:
        parts = {"processor": self.processor, "planner": self.planner, "install": self.install}
        return {
            "switch_overs": len(self.total),
            "median_ms": round(median(self.total), 3),
            "p99_ms": self.p99(),
            "max_ms": round(max(self.total), 3),
            "messages_median": median(self.messages),
            "parts_mean_ms": {name: round(sum(v) / len(v), 3) for name, v in parts.items()},
            "parts_p99_ms": {name: round(percentile(v, 99), 3) for name, v in parts.items()},
        }


@dataclass
class Variant:
    """A style with a number of running jobs."""

    style: str
    jobs: int
    on: Times = field(default_factory=Times)
    off: Times = field(default_factory=Times)


def run(options: BenchOptions) -> dict[str, Any]:
    count = options.repetitions or (10 if options.quick else SWITCH_OVERS)
    rounds = 1 if options.quick else ROUNDS
    one, hundred = Variant("labelled", 1), Variant("labelled", 100)
    pairs = Variant("per-pair", 2)
    unstoppable: list[str] = []
    options.progress("planning alone", 0.0)
    planned = {jobs: plan_times(jobs, count) for jobs in (1, PLANNED_JOBS)}
    with Lab("switching", read_topology("paper")) as lab:
        styles = ((one, hundred), (pairs,))
        turns = (variants for _ in options.limit.steps(range(rounds)) for variants in styles)
        for turn, variants in enumerate(turns):
            options.progress(f"switching, style {variants[0].style}", turn / (rounds * len(styles)))
            with _controlled(lab, variants[0].style, turn, unstoppable) as announcer:
                for variant in variants:
                    _measure(lab, announcer, variant, -(-count // rounds))
    on_p99 = one.on.p99()
    figures = {
        "on_p99_ms": on_p99,
        "off_p99_ms": one.off.p99(),
        "on_p99_ms_100_jobs": hundred.on.p99(),
        "per_pair_on_p99_ms": pairs.on.p99(),
        "plan_p99_ms": planned[PLANNED_JOBS]["p99_ms"],
        "paper_over_on_median": round(PAPER_S["on"] * 1e3 / median(one.on.total), 1),
    }
    names = {"labelled_1_job": one, "labelled_100_jobs": hundred, "per_pair_2_jobs": pairs}
    return {
        "figures": figures,
        "peers": {
            "per_pair_on_median_ms": round(median(pairs.on.total), 3),
            "per_pair_off_p99_ms": pairs.off.p99(),
            "paper_on_ms": PAPER_S["on"] * 1e3,
            "paper_off_ms": PAPER_S["off"] * 1e3,
        },
        "details": {
            "controllers_killed": unstoppable,
            "planned": list(planned.values()),
            "paper_parts_ms": {name: value * 1e3 for name, value in PAPER_S.items()},
            **{name: {"on": v.on.details(), "off": v.off.details()} for name, v in names.items()},
        },
    }


@contextmanager
def _controlled(lab: Lab, style: str, turn: int, unstoppable: list[str]) -> Iterator[SwitchOvers]:
    """A fresh controller of that style, with nothing restored from the one before.

    One that does not end when asked to is killed and noted: its figures stand.
    """
    state_dir = lab.resources.controller / f"turn-{turn}"
    process = start_controller(lab, f"link-separation:style={style}", ["--state-dir", str(state_dir)])
    try:
        with switch_overs(lab) as announcer:
            yield announcer
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            unstoppable.append(style)


def _measure(lab: Lab, announcer: SwitchOvers, variant: Variant, count: int) -> None:
    choices = itertools.cycle(itertools.combinations(lab.topology.compute_hosts, NODES_PER_JOB))
    jobs = [f"job-{number}" for number in range(variant.jobs)]
    for job, nodes in zip(jobs, choices, strict=False):
        announcer.notifier.job_started(job, nodes)
    for on in (True, False):  # the first switch-over computes what is kept afterwards
        announcer.switch(jobs[0], on=on)
    for number in range(count):
        job = jobs[number % len(jobs)]
        for times, on in ((variant.on, True), (variant.off, False)):
            times.add(announcer.switch(job, on=on)[0])
    for job in jobs:
        announcer.notifier.job_finished(job)
