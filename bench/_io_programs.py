"""The programs of bench/collective_peers, compiled, and verification of the files that they wrote.

Arrives: a folder; what a program printed.
Leaves: paths of programs for Open MPI and MPICH; numbers of wrong bytes.
Must not know: launches, file systems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waystage.bench import installed, run_program

SOURCES = Path(__file__).parent / "collective_peers"
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")
_HDF5 = "/usr/{}/hdf5/{}"
_CHUNK_WORDS = 1 << 22


@dataclass(frozen=True)
class Programs:
    """`raw` and `kernels` for each library, `openmpi` and `mpich`; `yields` is preloaded into MPICH's ranks; `floor` writes
    with bare requests, without MPI."""

    raw: dict[str, Path]
    kernels: dict[str, Path]
    yields: Path
    floor: Path


def compile_programs(folder: Path) -> Programs:
    """Compile with the machine's compilers. Raises BenchError that names the missing package."""
    raw, kernels = {}, {}
    for library, compiler in (("openmpi", "mpicc"), ("mpich", "mpicc.mpich")):
        installed(compiler, f"lib{library}-dev")
        raw[library] = folder / f"raw-{library}"
        sources = [SOURCES / "raw.c", SOURCES / "pattern.c"]
        run_program([compiler, *_FLAGS, "-o", raw[library], *sources])
        kernels[library] = folder / f"kernels-{library}"
        places = [
            f"-I{_HDF5.format('include', library)}",
            f"-L{_HDF5.format('lib/x86_64-linux-gnu', library)}",
        ]
        run_program([compiler, *_FLAGS, *places, "-o", kernels[library], SOURCES / "kernels.c", "-lhdf5"])
    yields = folder / "yield.so"
    run_program(["cc", "-O2", "-fPIC", "-shared", "-o", yields, SOURCES / "yield.c"])
    floor = folder / "floor"
    run_program(["cc", *_FLAGS, "-pthread", "-o", floor, SOURCES / "floor.c"])
    return Programs(raw, kernels, yields, floor)


def wrong_bytes(file: Path, printed: Mapping[str, Any]) -> int:
    """Bytes of a file that differ from what the program should have written, missing ones among them."""
    if "offsets" not in printed:
        return _wrong(file, 0, printed["bytes"], 0)
    each = printed["bytes"] // len(printed["offsets"])
    return sum(_wrong(file, offset, each, step) for step, offset in enumerate(printed["offsets"]))


def _wrong(file: Path, offset: int, length: int, step: int) -> int:
    """Word i is i x 2654435761 + 12345 + step, in 32 bits: pattern.h."""
    wrong, done, words = 0, 0, length // 4
    while done < words:
        count = min(_CHUNK_WORDS, words - done)
        found: NDArray[np.uint32] = np.fromfile(file, np.uint32, count, offset=offset + done * 4)
        index = np.arange(done, done + len(found), dtype=np.uint64)
        expected = (index * 2654435761 + 12345 + step).astype(np.uint32)
        wrong += int(np.count_nonzero(found.view(np.uint8) != expected.view(np.uint8)))
        wrong += (count - len(found)) * 4
        done += count
    return wrong
