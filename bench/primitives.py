"""Whether packets of MPI_Bcast and MPI_Reduce use the core switch that their module names, and how soon they move.

Chapter 4 of the dissertation: one of two core switches for MPI_Bcast, the other for MPI_Reduce, while a program of eight
ranks on four edge switches calls them by turns. Its messages are tagged; the modules (`_primitive_modules.py`, as a user
would write them) change places when a job starts and back when it ends, as often as time allows.

`elsewhere`: tagged packets at the wrong core switch, before the first and after the last switch-over by the switches'
counters, and between two from 30 ms after the change was in force: a full queue takes that long to drain. `switch_ms`:
from the announcement of the job to the last packet at the core switch of before, 99th percentile over switch-overs and
primitives. Without tags switches see no difference between the two; the peer is `ecmp`: `ecmp_elsewhere_pct` of tagged packets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _core_packets import COOKIE, CorePackets, core_packets, count_at_cores, counted

from waystage.bench import BenchError, BenchOptions, installed, run_program
from waystage.events import PathsChanged
from waystage.interconnect.generate import leaf_spine
from waystage.jobs.notify import Notifier
from waystage.mpi_io import tags
from waystage.stats import median
from waystage.worlds.lab import mpi
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.session import ControlSession
from waystage.worlds.lab.tag_service import tag_service

LINK_BPS = 100_000_000
SOURCE, MODULES = (Path(__file__).with_name(name) for name in ("_primitives.c", "_primitive_modules.py"))
CALLS, BYTES = 2, 1000
COMPUTE_US = 1000
"""Between two calls of a rank, so that the switches' one thread is not what is measured."""
SWITCH_OVERS, SWITCH_OVERS_QUICK = 100, 6
SETTLED_S = 2.0
DRAINED_NS = 30_000_000
BETWEEN_S = 0.2
LIMIT_S = 30.0
# Seconds that a run and a quick run take.
TAKES_S = 90, 25

FIRST = {"bcast": 0, "reduce": 1}
"""Number of the core switch before the first switch-over."""


def run(options: BenchOptions) -> dict[str, Any]:
    installed("mpirun", "openmpi-bin")
    topology = leaf_spine(4, 2, 2, storage_hosts=0, host_bps=LINK_BPS, uplink_bps=LINK_BPS)
    times = SWITCH_OVERS_QUICK if options.quick else SWITCH_OVERS
    with tempfile.TemporaryDirectory() as scratch, Lab(f"prim{os.getpid()}", topology) as lab:
        program = Path(scratch) / "primitives"
        run_program([installed("mpicc", "libopenmpi-dev"), "-O2", "-o", program, SOURCE])
        with tag_service(lab) as path:
            # A separate folder: this one has files that are named as modules of the standard library.
            modules = Path(shutil.copy(MODULES, scratch)).parent
            moved = _Measured(lab, program, path).run(modules, times)
            hashed = _Measured(lab, program, path).run_hashed()
    took = sorted(moved.took_ms)
    return {
        "figures": {
            "elsewhere": moved.elsewhere,
            "switch_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))], 2),
        },
        "peers": {"ecmp_elsewhere_pct": round(hashed, 1)},
        "details": {
            "switch_overs": times,
            "packets": moved.packets,
            "median_switch_ms": round(median(took), 2),
            "in_force_ms": round(median(moved.in_force_ms), 2),
            **{
                f"{part}_ms": round(
                    median([getattr(change, f"{part}_ns") for change in moved.changes]) / 1e6, 2
                )
                for part in ("processor", "planner", "install")
            },
        },
    }


class _Measured:
    """One program under one policy."""

    def __init__(self, lab: Lab, program: Path, tag_socket: Path) -> None:
        self._lab, self._program, self._socket = lab, program, tag_socket
        self.took_ms: list[float] = []
        self.in_force_ms: list[float] = []
        self.changes: list[PathsChanged] = []
        self.elsewhere = self.packets = 0

    def run(self, folder: Path, times: int) -> _Measured:
        modules = [
            {"primitive": name, "module": "_primitive_modules:Swapping", "options": {"first": first}}
            for name, first in FIRST.items()
        ]
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
        try:
            self._under("primitive-paths", {"modules": modules}, lambda packets: self._swap(packets, times))
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
        return self

    def run_hashed(self) -> float:
        """Percent of tagged packets that are not at the core switch of FIRST, under ECMP."""
        self._under("ecmp", {}, lambda _: time.sleep(SETTLED_S))
        return 100 * self.elsewhere / max(1, self.packets)

    def _under(self, policy: str, options: dict[str, Any], body: Callable[[CorePackets], object]) -> None:
        lab = self._lab
        self._control = ControlSession(lab, policy, options, name=policy)
        with self._control:
            count_at_cores(lab, tuple(FIRST))
            with core_packets(lab) as packets, tags.ticket(self._socket) as variables:
                given = variables | {"LD_PRELOAD": str(tags.library(None, None))}
                words = [word for name, value in given.items() for word in ("-x", f"{name}={value}")]
                hosts = [host.name for host in lab.topology.hosts]
                argv = [str(self._program), "3600", *map(str, (CALLS, BYTES, COMPUTE_US))]
                job = mpi.start(
                    lab, hosts, argv, options=words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                try:
                    began = counted(lab, tuple(FIRST))
                    if any(began.values()):
                        raise BenchError("the counters of core switches do not begin at 0")
                    cores = lab.topology.core_switches
                    if policy != "ecmp":
                        packets.wait_for({(cores[core], name) for name, core in FIRST.items()}, 0, LIMIT_S)
                    body(packets)
                    ended = counted(lab, tuple(FIRST))
                finally:
                    job.kill()
                    job.communicate()
                if policy == "ecmp":
                    self.packets = sum(ended.values())
                    self.elsewhere = sum(
                        count for (core, name), count in ended.items() if cores[FIRST[name]] != core
                    )
            for core in lab.topology.core_switches:
                lab.switches.ofctl("del-flows", lab.wiring.bridges[core], f"cookie={COOKIE:#x}/-1")

    def _swap(self, packets: CorePackets, times: int) -> None:
        lab, cores = self._lab, self._lab.topology.core_switches
        place = {name: cores[first] for name, first in FIRST.items()}
        self._quiet(place)
        changes = self._control.backplane.watch(PathsChanged)
        notifier = Notifier(self._control.backplane, patience_s=LIMIT_S)
        bounds: list[tuple[int, int, dict[str, str]]] = []
        for number in range(times):
            old, place = place, dict(zip(place, reversed(place.values()), strict=True))
            if number % 2:
                cause = notifier.job_finished(f"swap-{number - 1}")
            else:
                cause = notifier.job_started(f"swap-{number}", (lab.topology.hosts[0].name,))
            change, in_force_ns = _in_force(changes, cause.event_id)
            self.changes.append(change)
            packets.wait_for({(core, name) for name, core in place.items()}, in_force_ns, LIMIT_S)
            time.sleep(BETWEEN_S)
            bounds.append((cause.time_ns, in_force_ns, old))
            self.in_force_ms.append((in_force_ns - cause.time_ns) / 1e6)
        self._quiet(place)
        self._judge(packets, bounds)

    def _quiet(self, place: dict[str, str]) -> None:
        """No packet at the wrong core switch while nothing changes, by the switches' counters."""
        first = counted(self._lab, tuple(FIRST))
        time.sleep(SETTLED_S)
        last = counted(self._lab, tuple(FIRST))
        for (core, name), count in last.items():
            self.packets += count - first[core, name]
            if place[name] != core:
                self.elsewhere += count - first[core, name]

    def _judge(self, packets: CorePackets, bounds: list[tuple[int, int, dict[str, str]]]) -> None:
        ends = [begin for begin, *_ in bounds[1:]] + [1 << 63]
        packets.read()
        seen = sorted(packets.seen)
        for (begin, in_force, old), end in zip(bounds, ends, strict=True):
            within = [one for one in seen if begin < one[0] < end]
            self.packets += len(within)
            for name, core in old.items():
                late = [stamp for stamp, at, what in within if (at, what) == (core, name)]
                self.took_ms.append((late[-1] - begin) / 1e6 if late else 0.0)
                self.elsewhere += sum(stamp > in_force + DRAINED_NS for stamp in late)


def _in_force(changes: Any, cause_id: str) -> tuple[PathsChanged, int]:
    """The answer to this event, and the time at which it was in force, ns since 1970."""
    deadline = time.monotonic() + LIMIT_S
    while (left := deadline - time.monotonic()) > 0:
        arrived = changes.get(left)
        if arrived is not None and arrived.event.cause_id == cause_id:
            return arrived.event, int(arrived.time_ns)
    raise BenchError(f"the paths had not changed {LIMIT_S:.0f} s after a job's start or end")
