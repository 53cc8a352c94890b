"""What tags on the packets of MPI messages cost, and whether each is right.

Two hosts of a lab run the latency and bandwidth tests of OSU by their definition (shim/tests/tagged.c), with tags and
without, in turns. Four hosts then exchange messages of five primitives on eight communicators while a queue at a port
drops packets; every packet that enters a switch is compared with its contents, which say what they belong to.

`ns_per_packet` is the time of the program in the kernel, by the kernel's own count over the tagged turns;
`empty_program_ns` is that of a program without instructions, for the same packets: the count alone. `latency_pct`
and `bandwidth_pct` are what tags add to latency and take from bandwidth, as ratios of medians. `mistagged` counts
packets with another tag than their first byte's message, or none, of `judged` packets; `again` of all were
retransmissions. Bars: 100 ns, 1 %, 1 %, 0 of 10^7 packets: a run judges as many as its time allows, and says how many.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _empty_bpf import nothing_at, time_of

from waystage import _native
from waystage.bench import BenchError, BenchOptions, installed, run_program, take_turns
from waystage.interconnect.generate import leaf_spine
from waystage.interconnect.tags import layout_of
from waystage.mpi_io import tags
from waystage.worlds.lab import mpi, tag_capture
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.resources import NETNS_ROOT

SOURCE = Path(__file__).parents[1] / "shim" / "tests" / "tagged.c"
TURNS, TURNS_QUICK = 9, 1
LATENCY_ROUNDS, BANDWIDTH_ROUNDS = 4000, 12
CHECK_ROUNDS, CHECK_ROUNDS_QUICK = 1200, 60
# Seconds that a run and a quick run take.
TAKES_S = 140, 40

NARROW = ("root", "tbf", "rate", "100mbit", "burst", "20k", "limit", "60k")
"""A queue so short that bursts of several hosts overflow it."""


def run(options: BenchOptions) -> dict[str, Any]:
    installed("mpirun", "openmpi-bin")
    topology = leaf_spine(2, 2, 2)
    layout = layout_of(topology)
    assert layout is not None
    hosts = [host.name for host in topology.hosts]
    with tempfile.TemporaryDirectory() as scratch, Lab(f"tags{os.getpid()}", topology) as lab:
        start_controller(lab, "ecmp")
        program, path = Path(scratch) / "tagged", Path(scratch) / "tags.sock"
        run_program([installed("mpicc", "libopenmpi-dev"), "-O2", "-o", program, SOURCE])
        library = tags.library(None, None)
        interfaces = [f"{lab.resources.namespace(host)}/eth0" for host in hosts]
        widths = [getattr(layout, field) for field in layout.__struct_fields__]
        namespaces = [NETNS_ROOT / lab.resources.namespace(host) for host in hosts]
        spent: list[tuple[int, int]] = []
        floor: list[tuple[int, int]] = []

        @contextmanager
        def service() -> Iterator[dict[str, str]]:
            running = _native.TagService(interfaces, path, widths, [7] * 32, (1, 4))
            try:
                with tags.ticket(path) as variables, nothing_at(namespaces, "eth0") as nothing:
                    yield variables | {"LD_PRELOAD": str(library)}
                    spent.append(_kernel_time(nothing))
                    floor.append(time_of(nothing))
            finally:
                running.close()

        def measure(nodes: list[str], what: str, rounds: int, variables: dict[str, str]) -> str:
            given = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
            job = mpi.start(
                lab,
                nodes,
                [str(program), what, str(rounds)],
                options=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            try:
                out, err = job.communicate(timeout=140)
            finally:
                job.kill()
            if job.returncode != 0 or "no tags" in err:
                raise BenchError(f"tagged {what}: {err[-400:]}")
            return out

        def figures(variables: dict[str, str]) -> dict[str, float]:
            pair = [hosts[0], hosts[-1]]
            return {
                "latency_us": float(measure(pair, "latency", LATENCY_ROUNDS, variables)),
                "mbit_per_s": float(measure(pair, "bandwidth", BANDWIDTH_ROUNDS, variables)),
            }

        def with_tags(_: int) -> dict[str, float]:
            with service() as variables:
                return figures(variables)

        contestants: dict[Any, Callable[[int], dict[str, float]]] = {
            "tags": with_tags,
            "none": lambda _: figures({}),
        }
        with _kernel_counts():
            turns = take_turns(options, contestants, turns=TURNS, quick=TURNS_QUICK)
        verdict = _check(lab, layout, service, measure, hosts, options)
    ran, count = (sum(column) for column in zip(*spent[: turns.count or None], strict=True))
    idle_ran, idle_count = (sum(column) for column in zip(*floor[: turns.count or None], strict=True))
    return {
        "figures": {
            "ns_per_packet": round(ran / max(count, 1), 1),
            "empty_program_ns": round(idle_ran / max(idle_count, 1), 1),
            "latency_pct": round(100 * (turns.ratio("tags", "none", "latency_us") - 1), 2),
            "bandwidth_pct": round(100 * (1 - turns.ratio("tags", "none", "mbit_per_s")), 2),
            "mistagged": verdict.mistagged + verdict.untagged,
            "judged": verdict.judged,
            "again": verdict.again,
        },
        "peers": {
            "none_latency_us": round(turns.median("none", "latency_us"), 2),
            "none_mbit_per_s": round(turns.median("none", "mbit_per_s"), 1),
        },
        "details": turns.details()
        | {
            "packets": verdict.packets,
            "not_captured": verdict.lost,
            "communicators": verdict.communicators,
            "examples": verdict.examples,
        },
    }


def _check(lab: Lab, layout: Any, service: Any, measure: Any, hosts: list[str], options: BenchOptions) -> Any:
    ports: list[str] = []
    narrow: list[str] = []
    for wire in lab.wiring.wires:
        inner = [end.device for end in wire.ends if not end.is_host]
        (ports if len(inner) == 1 else narrow).extend(inner)
    for device in narrow[:2]:
        run_program(
            ["ip", "netns", "exec", lab.resources.fabric, "tc", "qdisc", "replace", "dev", device, *NARROW]
        )
    rounds = CHECK_ROUNDS_QUICK if options.quick else CHECK_ROUNDS
    with service() as variables, tag_capture.capturing(lab.resources.fabric, ports, layout) as capture:
        measure(hosts, "check", rounds, variables)
    return capture.verdict()


@contextmanager
def _kernel_counts() -> Iterator[None]:
    """The kernel measures its programs meanwhile."""
    switch = Path("/proc/sys/kernel/bpf_stats_enabled")
    before = switch.read_text()
    switch.write_text("1")
    try:
        yield
    finally:
        switch.write_text(before)


def _kernel_time(nothing: int) -> tuple[int, int]:
    """Nanoseconds and runs of this process's program for packets, which is not `nothing`."""
    for file in Path("/proc/self/fdinfo").iterdir():
        ran, count = time_of(int(file.name)) if int(file.name) != nothing else (0, 0)
        if count:
            return ran, count
    return 0, 0
