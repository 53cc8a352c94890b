"""The applications of `bench mpi-jobs`: how each is started, when it may begin, and whether its results are right.

Arrives: a lab, nodes in the order of ranks.
Leaves: when an application began and ended, seconds since 1970, and how many of its results are wrong.
Must not know: policies, what runs beside.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from waystage.bench import BenchError, TurnFailed, installed, run_program
from waystage.worlds.lab import mpi
from waystage.worlds.lab.lab import Lab

HERE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
POLL_S = 0.02
READY_S = 60.0

LAMMPS = "lmp"
LENNARD_JONES = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo {steps}
thermo_modify format float %.10g
run {steps}
"""
"""LAMMPS' own benchmark `lj`: a liquid of atoms, here of fewer."""

ENERGY_ERROR = 1e-6
"""Of the total energy per atom, against a run on one processor: sums of other orders differ by less."""

GATED = """[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec "$@"
echo ready
read go
echo "began $(date +%s.%N)"
"$@" </dev/null || exit
echo "ended $(date +%s.%N)"
"""
"""LAMMPS begins when rank 0 has read a line, as our own programs do."""


class Outcome(NamedTuple):
    began: float
    ended: float
    wrong: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Application(NamedTuple):
    """`energy` is what LAMMPS must come to, None where the program judges by itself; `variables` are the ranks'."""

    name: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = {}
    energy: float | None = None


class Programs:
    """Compiled into `folder`. `lammps_missing` says why LAMMPS is left out, or is None."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lammps_missing = (
            None if shutil.which(LAMMPS) else "LAMMPS is not installed: apt-get install lammps"
        )
        compile_with_naps("cg", folder / "cg")
        compile_with_naps("fft", folder / "fft")
        self._naps = folder / "naps.so"
        naps = HERE / "_naps.c"
        run_program(
            [installed("mpicc", "libopenmpi-dev"), *FLAGS, "-shared", "-fPIC", "-o", self._naps, naps]
        )

    def cg(self, unknowns: int, outer: int, inner: int) -> Application:
        return Application("cg", (str(self._folder / "cg"), str(unknowns), str(outer), str(inner)))

    def fft(self, rows: int, iterations: int) -> Application:
        return Application("fft", (str(self._folder / "fft"), str(rows), str(iterations)))

    def lammps(self, cells: int, steps: int) -> Application:
        """`cells` each way, of four atoms. The energy to compare with is computed now, on one processor."""
        script = self._folder / f"lj-{cells}-{steps}"
        script.write_text(LENNARD_JONES.format(cells=cells, steps=steps), encoding="utf-8")
        argv = (installed(LAMMPS, "lammps"), "-in", str(script), "-log", "none")
        energy = energy_of(run_program(argv, stdin=subprocess.DEVNULL))
        if energy is None:
            raise BenchError("LAMMPS printed no energy")
        preloaded = {"LD_PRELOAD": str(self._naps)}
        return Application("lammps", ("sh", "-c", GATED, "sh", *argv), preloaded, energy)


def compile_with_naps(name: str, binary: Path, source: Path | None = None) -> None:
    """Compile a program of this folder, or a variant of it, whose ranks sleep while they wait."""
    words = [installed("mpicc", "libopenmpi-dev"), *FLAGS, f"-I{HERE}", "-o", binary]
    run_program([*words, source or HERE / f"_{name}.c", HERE / "_naps.c", "-lm"])


class Job:
    """A started application, whose ranks wait until `begin`."""

    def __init__(self, application: Application, process: mpi.MpiJob, said: Path) -> None:
        self.application = application
        self._process, self._said = process, said

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while "ready\n" not in self._said.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TurnFailed(f"{self.application.name} did not start: {self._end()}")
            time.sleep(POLL_S)

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.close()

    def outcome(self, limit_s: float) -> Outcome:
        """Raises TurnFailed where it has not ended well within `limit_s`."""
        name = self.application.name
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TurnFailed(f"{name} did not end in {limit_s:g} s") from None
        if status != 0:
            raise TurnFailed(f"{name} ended with status {status}: {self._end()}")
        said = self._said.read_text(errors="replace")
        found = judged(said, self.application.energy)
        if found is None:
            raise TurnFailed(f"{name} printed no result: {self._end()}")
        return found

    def _end(self) -> str:
        return self._said.read_text(errors="replace")[-300:]


@contextlib.contextmanager
def started(
    lab: Lab, application: Application, nodes: Sequence[str], variables: Mapping[str, str], said: Path
) -> Iterator[Job]:
    """The application, one rank a node, with `variables` for its ranks; killed at the end where it still runs."""
    given = dict(variables)
    for name, value in application.variables.items():
        given[name] = f"{value}:{given[name]}" if name == "LD_PRELOAD" and name in given else value
    options = [word for name, value in given.items() for word in ("-x", f"{name}={value}")]
    with said.open("w") as output:
        process = mpi.start(
            lab,
            nodes,
            application.argv,
            options=options,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Job(application, process, said)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def judged(said: str, energy: float | None) -> Outcome | None:
    """What a program's output says of its run; None where it says nothing."""
    if energy is None:
        line = next((line for line in said.splitlines() if line.startswith("{")), None)
        if line is None:
            return None
        report: dict[str, Any] = json.loads(line)
        return Outcome(report["began"], report["ended"], report["wrong"])
    times = [re.search(rf"^{word} ([\d.]+)$", said, re.MULTILINE) for word in ("began", "ended")]
    found = energy_of(said)
    if found is None or None in times:
        return None
    began, ended = (float(time[1]) for time in times if time is not None)
    return Outcome(began, ended, int(not abs(found - energy) <= ENERGY_ERROR * abs(energy)))


def energy_of(said: str) -> float | None:
    """The total energy in the last row of LAMMPS' table, or None."""
    heads = r"\s+".join(("Step", "Temp", "E_pair", "E_mol", "TotEng", "Press"))
    table = re.search(rf"^\s*{heads}\s*\n((?:[ \t]*\d+(?:[ \t]+\S+){{5}}[ \t]*\n)+)", said, re.MULTILINE)
    if table is None:
        return None
    return float(table[1].splitlines()[-1].split()[4])
