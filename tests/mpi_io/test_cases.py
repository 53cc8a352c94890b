"""Users' complaints about collective I/O, and traps of implementations: each is a case of shim/tests/io_case_list.c.

All complaints run in one launch of an implementation, and all traps in another. The same program without Waystage is
the oracle of files and lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpi_io.conftest import Mpi, Ran, run_mpi

COMPLAINTS = {
    "subarray_4d": "mpich#7935",
    "pieces_4k": "mpich#7645",
    "one_node": "mpich#6984",
    "aggregators": "mpich#7531",
    "memory_gaps": "mpich#6985",
    "large_view": "mpich#2182",
    "uneven": "ompi#12718",
    "gaps_stay": "ompi#4446",
    "many": "ompi#11182",
    "across_stripes": "ompi#13376",
    "striping_hint": "ompi#10132",
    "hints_differ": "mpich#6408",
}
TRAPS = (
    *(
        "zero_length_view",
        "append",
        "zero_byte_blocks",
        "nested_subarrays",
        "unordered_memory",
        "shared_pointer",
    ),
    *(
        "atomic",
        "preallocate",
        "beyond_4_gib",
        "split",
        "end_of_file",
        "pointers",
        "nonblocking",
        "datatypes",
    ),
    *("errors", "sequential", "progress", "shared_views", "by_itself", "openings"),
)

WRONG_BY_ITSELF = {
    # Both hang, or ignore the hint: what their users report.
    "openmpi": {"hints_differ", "striping_hint", "errors", "end_of_file"},
    # ROMIO aborts on MPI_DOUBLE_INT in memory, and reports all bytes of a read beyond the end.
    "mpich": {"hints_differ", "striping_hint", "datatypes", "end_of_file", "zero_length_view"},
}
"""Cases that the implementation does not pass without Waystage; the program checks their contents itself."""

EXPECTED = {
    "striping_hint": {"unit": 4 * 1048576},
    "end_of_file": {"bytes": 4 * 82, "undefined": 4, "count": 0},
    "errors": {"failed": 4, "handled": 4},
    "hints_differ": {"write": 0, "read": 0, "count": 2000, "position": 2000},
    "zero_length_view": {"write": 0, "read": 0, "count": 100, "position": 100},
}
"""Lines, summed over ranks, where there is no oracle. The last line of a name counts."""


@dataclass(frozen=True)
class Both:
    """What was printed about each case, and the folders of files."""

    lines: dict[str, list[str]]
    plain_lines: dict[str, list[str]]
    folder: Path
    plain_folder: Path
    ran: Ran


def by_case(out: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        case, _, rest = line.partition(" ")
        found.setdefault(case, []).append(rest)
    return found


Launched = Callable[[tuple[str, ...]], Both]


@pytest.fixture(scope="module")
def launched(mpi: Mpi, compiled: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """The launch of these cases, the first time that it is asked for."""
    return functools.cache(lambda cases: _launch(mpi, compiled, tmp_path_factory, cases))


def _launch(
    mpi: Mpi,
    compiled: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    cases: tuple[str, ...],
) -> Both:
    program = compiled(
        mpi.compiler("mpicc"),
        "io_cases.c",
        "io_case_list.c",
        "io_case_alone.c",
        name=f"io-cases-{mpi.name}",
        flags=("-D_GNU_SOURCE",),
    )
    folder, plain_folder = (tmp_path_factory.mktemp(f"{mpi.name}-{way}") for way in ("io", "plain"))
    ran = run_mpi(mpi, str(program), str(folder), *cases)
    fit = [case for case in cases if case not in WRONG_BY_ITSELF[mpi.name]]
    plain = run_mpi(mpi, str(program), str(plain_folder), *fit, io=None)
    assert plain.code == 0, plain.err
    return Both(by_case(ran.out), by_case(plain.out), folder, plain_folder, ran)


@pytest.fixture
def both(case: str, launched: Launched) -> Both:
    return launched(next(cases for cases in (tuple(COMPLAINTS), TRAPS) if case in cases))


@pytest.mark.parametrize("case", [*COMPLAINTS, *TRAPS])
def test_a_case_of_users_gives_the_bytes_and_results_of_mpi(case: str, mpi: Mpi, both: Both) -> None:
    lines = both.lines.get(case, [])
    assert lines and lines[-1] == "done", f"{both.ran.code}: {both.ran.out[-400:]}{both.ran.err[-2000:]}"
    assert all(line == "differ 0" for line in lines if line.startswith("differ"))
    said = {name: int(value) for name, value in (line.split() for line in lines[:-1])}
    for name, value in EXPECTED.get(case, {}).items():
        assert said[name] == value, name
    if case not in WRONG_BY_ITSELF[mpi.name]:
        assert lines == both.plain_lines[case]
        assert (both.folder / case).read_bytes() == (both.plain_folder / case).read_bytes()


def test_every_file_of_several_ranks_goes_through_aggregators(launched: Launched) -> None:
    both = launched(tuple(COMPLAINTS))
    for case in COMPLAINTS:
        assert f"{case}: through aggregators" in both.ran.err, both.ran.err[-2000:]


def test_what_is_not_native_is_said_once_with_verbose(launched: Launched) -> None:
    both = launched(TRAPS)
    assert both.ran.err.count("the file is in atomic mode") == 1
    assert both.ran.err.count("nonblocking collectives are not native") == 1


def test_the_program_ends_as_it_does_by_itself(launched: Launched) -> None:
    for cases in (tuple(COMPLAINTS), TRAPS):
        ran = launched(cases).ran
        assert ran.code == 0, ran.err[-2000:]
