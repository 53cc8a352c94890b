"""What the profiler's C sources and the Python beside them must have in common."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from waystage._native import shim_sources
from waystage.patterns.kinds import KINDS, Kind
from waystage.profiler import build

REPOSITORY = Path(__file__).parents[2]
SHIM = REPOSITORY / "shim"
SOURCES = SHIM / "mpi"


def test_both_tables_of_kinds_are_the_same() -> None:
    rows = re.findall(
        r'X\((\d+), \w+, "([\w-]+)", "([\w-]+)", (\w+)\)', (SOURCES / "kinds.h").read_text(encoding="utf-8")
    )
    written = tuple(
        Kind(int(number), name, group, flags == "KIND_PULLED", flags == "KIND_PROTOCOL")
        for number, name, group, flags in rows
    )
    assert written == KINDS


def test_the_package_holds_every_source() -> None:
    """As links: the wheel's builder follows links to files and not to folders."""
    shipped = REPOSITORY / "python" / "waystage" / "data" / "shim"
    assert {p.name for p in SOURCES.iterdir()} == {p.name for p in shipped.iterdir()}
    assert all(p.resolve() == SOURCES / p.name for p in shipped.iterdir())


def test_the_native_module_holds_the_catalogs_sources_as_they_are() -> None:
    files = [SHIM / "include" / "waystage_ring.h", *(SHIM / "posix").iterdir()]
    assert dict(shim_sources("posix")) == {path.name: path.read_text(encoding="utf-8") for path in files}


def test_the_native_module_holds_the_sources_of_collective_io_as_they_are() -> None:
    files = [SHIM / "include" / "waystage_io.h", *(SHIM / "io").iterdir()]
    assert dict(shim_sources("io")) == {path.name: path.read_text(encoding="utf-8") for path in files}


def test_the_native_module_holds_the_sources_of_multicast_as_they_are() -> None:
    files = [*(SHIM / "multicast").iterdir(), *(SHIM / "paths").glob("agent.*")]
    assert dict(shim_sources("multicast")) == {path.name: path.read_text(encoding="utf-8") for path in files}


def test_no_source_is_too_long_to_read() -> None:
    files = (REPOSITORY / "shim").glob("*/*")
    lengths = {p.name: len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_the_library_needs_no_mpi_to_be_loaded() -> None:
    if shutil.which("mpicc") is None:
        pytest.skip("mpicc is missing: install libopenmpi-dev")
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", str(build())], capture_output=True, text=True, check=True
    ).stdout
    assert not re.findall(r"\b(?:P?MPI_|ompi_|MPIR_)\w+", symbols)
