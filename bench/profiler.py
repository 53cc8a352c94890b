"""What the MPI profiler costs a program, and whether it misses a byte.

A rank sends small messages to itself, so that nothing but processor time counts: the difference with and
without the profiler is its cost for a message, its sending and its receiving together. Two ranks then stream
windows of small messages, over TCP as between hosts, and through shared memory for comparison. Runs with
and without alternate, and each figure is a median over pairs of runs. The peer is Open MPI's own monitoring,
which counts what is sent.

Then the programs of shim/tests send in every way through every communicator and say what they sent: what the
profiler did not see of it, or saw too much, is missing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, BenchOptions
from waystage.patterns import Pattern
from waystage.profiler import build
from waystage.stats import median

PROGRAMS = Path(__file__).parents[1] / "shim" / "tests"
FLAGS = ("-std=c11", "-O2", "-Wno-stringop-overread")
LAUNCH = ("mpirun", "--allow-run-as-root", "--oversubscribe")
TCP = ("--mca", "btl", "tcp,self")
SHARED = ("--mca", "btl", "vader,self")
SIZES = (1, 8, 64, 256, 1024)
"""Bytes; the original lost up to 30 % of bandwidth below 1 KB, and least above."""

SUITE: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("communicators", (), TCP),
    ("sends", (), TCP),
    ("collectives", (), TCP),
    ("onesided", ("atomics",), (*TCP, "--mca", "osc", "pt2pt")),
    ("threads", (), TCP),
    ("communicators", (), SHARED),
    ("sends", (), SHARED),
    ("collectives", (), SHARED),
    ("onesided", (), SHARED),
    ("threads", (), SHARED),
)
"""Program, its arguments, options of mpirun."""

MONITORING = {"OMPI_MCA_pml_monitoring_enable": "2", "OMPI_MCA_pml_monitoring_enable_output": "0"}


def run(options: BenchOptions) -> dict[str, Any]:
    repetitions = options.repetitions or (2 if options.quick else 11)
    with tempfile.TemporaryDirectory(prefix="waystage-profiler-") as folder:
        bench = _Bench(Path(folder), options, repetitions)
        return bench.measure()


class _Bench:
    """The library and the programs, compiled."""

    def __init__(self, folder: Path, options: BenchOptions, repetitions: int) -> None:
        self._folder = folder
        self._options = options
        self._repetitions = repetitions
        self._messages = "6400" if options.quick else "640000"
        self._over_tcp = (
            "6400" if options.quick else "16000"
        )  # of 0.1 ms each, where a core is polling at either end
        self._sizes = (8,) if options.quick else SIZES
        self._profiled = {
            "LD_PRELOAD": str(build(launcher="mpirun")),
            "WAYSTAGE_PROFILE_OUTPUT": str(folder / "run.pattern"),
        }

    def measure(self) -> dict[str, Any]:
        self._compile("cost")
        own = self._alternate(("self", self._messages), ranks=1, options=(), share=0.0)
        streams = {}
        for number, size in enumerate(self._sizes):
            for name, network, messages in (
                ("tcp", TCP, self._over_tcp),
                ("shared_memory", SHARED, self._messages),
            ):
                words = ("stream", messages, str(size))
                share = 0.2 + 0.6 * (2 * number + (name != "tcp")) / (2 * len(self._sizes))
                streams[name, size] = self._alternate(words, ranks=2, options=network, share=share)
        monitoring = self._alternate(
            ("self", self._messages), ranks=1, options=(), share=0.8, environment=MONITORING
        )
        missing, suite = self._suite()
        return {
            "figures": {
                "ns_per_message": round(own["added_ns"], 2),
                "bandwidth_loss_pct": round(median([streams["tcp", s]["loss_pct"] for s in self._sizes]), 2),
                "missing_bytes": missing,
            },
            "peers": {"open_mpi_monitoring_ns_per_message": round(monitoring["added_ns"], 2)},
            "details": {
                "repetitions": self._repetitions,
                "self": own,
                "bandwidth": [
                    {"network": name, "message_bytes": size, **found}
                    for (name, size), found in streams.items()
                ],
                "shared_memory_loss_pct": round(
                    median([streams["shared_memory", s]["loss_pct"] for s in self._sizes]), 2
                ),
                "suite": suite,
            },
        }

    def _alternate(
        self,
        words: Sequence[str],
        *,
        ranks: int,
        options: Sequence[str],
        share: float,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, float]:
        """Nanoseconds a message, without and with `environment`, by default the profiler's."""
        added = self._profiled if environment is None else environment
        without: list[float] = []
        with_it: list[float] = []
        for repetition in range(self._repetitions):
            self._options.progress(" ".join(words), share)
            # Every other pair in the other order, so that a drift of the machine favours neither.
            for profiled in (False, True) if repetition % 2 == 0 else (True, False):
                done = self._run("cost", words, ranks, options, added if profiled else {})
                (with_it if profiled else without).append(float(done))
        pairs = list(zip(without, with_it, strict=True))
        return {
            "without_ns": round(median(without), 2),
            "with_ns": round(median(with_it), 2),
            "added_ns": round(median([b - a for a, b in pairs]), 2),
            # Bandwidth is the reciprocal of time.
            "loss_pct": round(median([100 * (1 - a / b) for a, b in pairs]), 2),
        }

    def _suite(self) -> tuple[int, list[dict[str, Any]]]:
        """Bytes by which what was seen differs from what was sent, over all pairs and kinds."""
        rows: list[dict[str, Any]] = []
        missing = 0
        for program, words, options in SUITE:
            self._options.progress(f"counting: {program}", 0.9)
            self._compile(program)
            for old in self._folder.glob("said.*"):
                old.unlink()
            (self._folder / "run.pattern").unlink(missing_ok=True)
            self._run(program, [str(self._folder / "said"), *words], 6, options, self._profiled)
            said = self._said()
            pattern = Pattern.read(self._folder / "run.pattern")
            seen: Counter[tuple[str, int, int]] = Counter()
            for kind in {kind for kind, _, _ in said}:
                chosen = pattern.counted(kinds=[kind])
                for src, dst, total in zip(chosen.src, chosen.dst, chosen.bytes, strict=True):
                    seen[kind, int(src), int(dst)] += int(total)
            unseen = sum(abs(said[key] - seen[key]) for key in {*said, *seen})
            differs = _disagreement(pattern)
            missing += unseen + differs
            rows.append(
                {
                    "program": program,
                    "options": " ".join(options),
                    "bytes": sum(said.values()),
                    "missing": unseen,
                    "received_differs": differs,
                }
            )
        return missing, rows

    def _said(self) -> Counter[tuple[str, int, int]]:
        said: Counter[tuple[str, int, int]] = Counter()
        for file in self._folder.glob("said.*"):
            for line in file.read_text(encoding="utf-8").splitlines():
                kind, src, dst, _, total = line.split()
                said[kind, int(src), int(dst)] += int(total)
        return said

    def _compile(self, program: str) -> None:
        if (self._folder / program).exists():
            return
        source = PROGRAMS / f"{program}.c"
        done = subprocess.run(
            ["mpicc", *FLAGS, "-o", str(self._folder / program), str(source), "-lpthread"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"{source.name} cannot be compiled: {done.stderr.strip()[:200]}")

    def _run(
        self,
        program: str,
        words: Sequence[str],
        ranks: int,
        options: Sequence[str],
        environment: Mapping[str, str],
    ) -> str:
        passed = [word for name, value in environment.items() for word in ("-x", f"{name}={value}")]
        command = [*LAUNCH, *options, *passed, "-np", str(ranks), str(self._folder / program), *words]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"{program} ended with status {done.returncode}: {done.stderr.strip()[:300]}")
        return done.stdout


def _disagreement(pattern: Pattern) -> int:
    """Bytes by which receivers and senders differ, over all pairs and kinds that receivers count."""
    total = 0
    for kind in pattern.kinds:
        if kind.group == "one-sided":
            continue
        difference: Counter[tuple[int, int]] = Counter()
        for traffic, sign in ((pattern.sent, 1), (pattern.received, -1)):
            chosen = pattern.counted(kinds=[kind.name], traffic=traffic)
            for src, dst, value in zip(chosen.src, chosen.dst, chosen.bytes, strict=True):
                difference[int(src), int(dst)] += sign * int(value)
        total += sum(abs(value) for value in difference.values())
    return total
