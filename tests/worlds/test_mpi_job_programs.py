"""The applications of `bench mpi-jobs` judge their own results, and its figures are those of the worst case."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import BENCH, bench_module
from waystage.bench import BenchOptions, take_turns

APPS = bench_module("_mpi_apps")
JOBS = bench_module("mpi_jobs")
LIMIT_S = 100
ARGUMENTS = {"cg": ("1024", "4", "5"), "fft": ("32", "3")}

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or shutil.which("mpicc") is None,
    reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
)


def results(binary: Path, name: str, ranks: int) -> Any:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    command += ["--mca", "btl", "tcp,self", "-np", str(ranks), str(binary), *ARGUMENTS[name]]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return APPS.judged(done.stdout, None)


@pytest.fixture(scope="module", params=ARGUMENTS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    binary = tmp_path_factory.mktemp("job") / request.param
    APPS.compile_with_naps(request.param, binary)
    return request.param, binary


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_results_are_right_with_any_number_of_ranks(program: tuple[str, Path], ranks: int) -> None:
    name, binary = program
    outcome = results(binary, name, ranks)
    assert outcome.wrong == 0 and outcome.seconds > 0


@needs_mpi
@pytest.mark.parametrize(
    ("name", "right", "broken"),
    [
        (
            "cg",
            "MPI_DOUBLE, MPI_SUM, g->row);\n    MPI_Sendrecv",
            "MPI_DOUBLE, MPI_MAX, g->row);\n    MPI_Sendrecv",
        ),
        ("cg", "g->sum + g->offset", "g->sum"),
        ("cg", "ZETA + diagonal[i]", "2 * ZETA + diagonal[i]"),
        # The inverse undoes this transform as well: only the known spectrum is wrong.
        ("fft", "inverse ? turn : conj(turn)", "inverse ? conj(turn) : turn"),
        ("fft", "transpose();\n        transform_rows(1);", "transform_rows(1);"),
        ("fft", "(inverse ? turn : conj(turn))", "conj(turn)"),
    ],
)
def test_a_wrong_computation_is_detected(name: str, right: str, broken: str, tmp_path: Path) -> None:
    text = (BENCH / f"_{name}.c").read_text()
    assert text.count(right) == 1
    source = tmp_path / "broken.c"
    source.write_text(
        text.replace(right, broken).replace("int inverse)\n{", "int inverse)\n{\n    (void)inverse;")
    )
    APPS.compile_with_naps(name, tmp_path / "broken", source)
    assert results(tmp_path / "broken", name, 2).wrong > 0


TABLE = """ready
began 100.5
   Step          Temp          E_pair         E_mol          TotEng         Press
         0   1.44          -6.77         0             -4.61         -5.02
        60   0.73          -5.71         0             -4.6224       0.44
Loop time of 0.1 on 4 procs
ended 103.25
"""


def test_the_energy_decides_whether_lammps_is_right() -> None:
    assert APPS.judged(TABLE, -4.6224) == APPS.Outcome(100.5, 103.25, 0)
    assert APPS.judged(TABLE, -4.6225).wrong == 1
    assert APPS.judged(TABLE.replace("-4.6224", "nan"), -4.6224).wrong == 1
    assert APPS.judged(TABLE.replace("ended", "error"), -4.6224) is None
    assert APPS.judged("ready\n", None) is None


@pytest.mark.skipif(shutil.which("lmp") is None, reason="needs the Debian package lammps")
def test_lammps_prints_the_energy_that_is_compared(tmp_path: Path) -> None:
    if shutil.which("mpicc") is None:
        pytest.skip("needs the Debian package libopenmpi-dev")
    assert APPS.Programs(tmp_path).lammps(4, 10).energy == pytest.approx(-4.62, abs=0.05)


@needs_mpi
def test_without_lammps_the_others_run_and_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(APPS, "LAMMPS", "no-such-lmp")
    programs = APPS.Programs(tmp_path)
    assert "apt-get install lammps" in programs.lammps_missing
    assert [one.name for one, _ in JOBS.applications(16, programs)] == ["cg", "fft"]


def test_the_figures_are_those_of_the_worst_topology_and_application() -> None:
    def measured(cg: float, fft: float, wrong: int = 0) -> Mapping[str, float]:
        return {"cg_s": cg, "fft_s": fft, "staging_s": 1.0, "makespan_s": max(cg, fft), "wrong": wrong}

    def of(policy: str, hosts: int, turn: int) -> Mapping[str, float]:
        if policy == "ecmp":
            return measured(10.0, 4.0)
        if policy != JOBS.OURS:
            return measured(9.0, 3.0, wrong=turn)
        return measured(8.0, 4.4) if hosts == 8 else measured(6.0, 3.0)

    contestants = {
        (policy, f"{hosts} hosts"): lambda turn, policy=policy, hosts=hosts: of(policy, hosts, turn)
        for policy in JOBS.POLICIES
        for hosts in (8, 16)
    }
    answer = JOBS.figures(take_turns(BenchOptions(), contestants, turns=2), [8, 16])
    assert answer["figures"] == {
        "makespan_x_ecmp": 0.8,
        "makespan_8_x_ecmp": 0.8,
        "makespan_16_x_ecmp": 0.6,
        "worst_app_x_ecmp": 1.1,
        "wrong_results": 2 * (len(JOBS.POLICIES) - 2),
    }
    assert set(answer["peers"].values()) == {0.9}
