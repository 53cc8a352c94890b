"""What the MPI profiler costs a program, and whether it misses a byte.

A rank sends small messages to itself, so that only CPU time counts: the difference with and without the profiler is
its cost for a message, sending and receiving together. Two ranks then stream windows of small messages, over TCP as
between hosts, and through shared memory for comparison. Each figure is a median over pairs of runs, with and without,
of the same turn. A run that ends early may have fewer sizes, and names the others. The peer is Open MPI's own
monitoring, which counts what is sent.

The programs of shim/tests send before in every way through every communicator and print what they sent: bytes that the
profiler did not see, or saw in excess, are missing.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from waystage.bench import BenchOptions, Figures, Turns, run_program, take_turns
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
TAKES_S = 320, 20
LEAST_S = 40, 20


def run(options: BenchOptions) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="waystage-profiler-") as folder:
        return _Bench(Path(folder), options).measure()


class _Bench:
    """The library and the programs, compiled."""

    def __init__(self, folder: Path, options: BenchOptions) -> None:
        self._folder = folder
        self._options = options
        self._messages = "6400" if options.quick else "640000"
        # Over TCP a message takes 0.1 ms where a core is polling at either end.
        self._over_tcp = "6400" if options.quick else "16000"
        self._sizes = (8,) if options.quick else SIZES
        self._profiled = {
            "LD_PRELOAD": str(build(launcher="mpirun")),
            "WAYSTAGE_PROFILE_OUTPUT": str(folder / "run.pattern"),
        }

    def measure(self) -> dict[str, Any]:
        missing, suite = self._suite()
        self._compile("cost")
        own = partial(self._cost, ("self", self._messages), 1, ())
        contestants = {
            ("self", "without"): partial(own, {}),
            ("self", "with"): partial(own, self._profiled),
            ("self", "monitoring"): partial(own, MONITORING),
        }
        networks = {"tcp": (TCP, self._over_tcp), "shared_memory": (SHARED, self._messages)}
        for size in self._sizes:
            for name, (network, messages) in networks.items():
                stream = partial(self._cost, ("stream", messages, str(size)), 2, network)
                contestants[f"{name} {size}", "without"] = partial(stream, {})
                contestants[f"{name} {size}", "with"] = partial(stream, self._profiled)
        part = self._options.part("cost", 0.1, 1.0)
        turns = take_turns(part, contestants, turns=11, quick=2, case=lambda name: name[0], parts=1)
        loss_pct = {
            name: {
                str(size): _loss_pct(turns, pair)
                for size in self._sizes
                if (pair := f"{name} {size}") not in turns.missing
            }
            for name in networks
        }

        def median_pct(network: str) -> float:
            return round(median(list(loss_pct[network].values())), 2)

        known = self._options.limit.known
        return {
            "figures": known(
                {
                    "ns_per_message": lambda: round(_added_ns(turns, "with"), 2),
                    "bandwidth_loss_pct": lambda: median_pct("tcp"),
                    "missing_bytes": lambda: missing,
                }
            ),
            "peers": {"open_mpi_monitoring_ns_per_message": round(_added_ns(turns, "monitoring"), 2)},
            "details": turns.details()
            | {
                "loss_pct": loss_pct,
                **known({"shared_memory_loss_pct": lambda: median_pct("shared_memory")}),
                "suite": suite,
            },
        }

    def _cost(
        self,
        words: Sequence[str],
        ranks: int,
        options: Sequence[str],
        environment: Mapping[str, str],
        turn: int,
    ) -> Figures:
        return {"ns": float(self._run("cost", words, ranks, options, environment))}

    def _suite(self) -> tuple[int, list[dict[str, Any]]]:
        """Bytes by which the pattern differs from what was sent, over all pairs and kinds.

        A run that ends early leaves half of its time to the costs.
        """
        rows: list[dict[str, Any]] = []
        missing = 0
        steps = self._options.limit.steps(SUITE, 2, label=lambda one: f"{one[0]}, {' '.join(one[2])}")
        for number, (program, words, options) in enumerate(steps):
            self._options.progress(f"counting: {program}", 0.1 * number / len(SUITE))
            self._compile(program)
            for old in self._folder.glob("sent.*"):
                old.unlink()
            (self._folder / "run.pattern").unlink(missing_ok=True)
            self._run(program, [str(self._folder / "sent"), *words], 6, options, self._profiled)
            sent = self._sent()
            pattern = Pattern.read(self._folder / "run.pattern")
            seen: Counter[tuple[str, int, int]] = Counter()
            for kind in {kind for kind, _, _ in sent}:
                chosen = pattern.counted(kinds=[kind])
                for src, dst, total in zip(chosen.src, chosen.dst, chosen.bytes, strict=True):
                    seen[kind, int(src), int(dst)] += int(total)
            unseen = sum(abs(sent[key] - seen[key]) for key in {*sent, *seen})
            differs = _disagreement(pattern)
            missing += unseen + differs
            rows.append(
                {
                    "program": program,
                    "options": " ".join(options),
                    "bytes": sum(sent.values()),
                    "missing": unseen,
                    "received_differs": differs,
                }
            )
        return missing, rows

    def _sent(self) -> Counter[tuple[str, int, int]]:
        sent: Counter[tuple[str, int, int]] = Counter()
        for file in self._folder.glob("sent.*"):
            for line in file.read_text(encoding="utf-8").splitlines():
                kind, src, dst, _, total = line.split()
                sent[kind, int(src), int(dst)] += int(total)
        return sent

    def _compile(self, program: str) -> None:
        if (self._folder / program).exists():
            return
        source = PROGRAMS / f"{program}.c"
        run_program(["mpicc", *FLAGS, "-o", self._folder / program, source, "-lpthread"])

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
        return run_program(command, cwd=self._folder, timeout=300)


def _added_ns(turns: Turns, which: str) -> float:
    return median([b - a for a, b in turns.paired(("self", "without"), ("self", which), "ns")])


def _loss_pct(turns: Turns, stream: str) -> float:
    """Of bandwidth, the reciprocal of time."""
    return median([100 * (1 - a / b) for a, b in turns.paired((stream, "without"), (stream, "with"), "ns")])


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
