"""One rank of the benchmark `coupling`: a writer or a reader by one of the methods. Imports only NumPy and the method.

Arguments: method, role, rank, side of the cube, versions, folder. Prints `ready` once it is connected, waits for a line,
then moves all versions and prints a line of JSON: when it had finished (CLOCK_MONOTONIC, s), versions lost or wrong.

Eight writers have a box each, half of the cube in each dimension; four readers a slab of the last dimension, across all
boxes. A cell of version v has its index plus v as its value.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WRITERS, READERS, DEPTH = 8, 4, 2
Array = Any
Region = tuple[tuple[int, int, int], tuple[int, int, int]]


def box(rank: int, side: int) -> Region:
    """Starts and counts of a writer's box."""
    half = side // 2
    return (rank // 4 * half, rank // 2 % 2 * half, rank % 2 * half), (half, half, half)


def slab(rank: int, side: int) -> Region:
    """Starts and counts of a reader's slab."""
    width = side // READERS
    return (0, 0, rank * width), (side, side, width)


def cells(region: Region, side: int) -> Array:
    """The cells of a box in version 0."""
    (x, y, z), (nx, ny, nz) = region
    index = np.arange(side, dtype="f8")
    rows = index[x : x + nx, None, None] * side * side + index[None, y : y + ny, None] * side
    return np.ascontiguousarray(rows + index[None, None, z : z + nz])


def go() -> None:
    """Say that this rank is connected, and wait for all others."""
    print("ready", flush=True)
    sys.stdin.readline()


def wrong(found: Array, first: Array, version: int, last: bool) -> bool:
    """Whether cells are wrong: the corners and some between of every version, all of the last."""
    if last:
        return not (found == first + version).all()
    return not (found[::31, ::31, ::7] == first[::31, ::31, ::7] + version).all()


def write(put: Callable[[int, Array], None], region: Region, side: int, versions: int) -> None:
    array = cells(region, side)
    for version in range(versions):
        put(version, array)
        array += 1


def read(get: Callable[[int], Array], region: Region, side: int, versions: int) -> int:
    first, lost = cells(region, side), 0
    for version in range(versions):
        lost += wrong(get(version), first, version, version == versions - 1)
    return lost


def waystage(role: str, rank: int, side: int, versions: int, folder: Path) -> int:
    from waystage import io

    if role == "write":
        region = box(rank, side)
        with io.couple("cube", "write", rank=rank, size=WRITERS, depth=DEPTH) as writer:
            go()

            def put(version: int, array: Array) -> None:
                writer.put("u", version, array, starts=region[0], shape=(side,) * 3)
                writer.commit(version)

            write(put, region, side, versions)
        return 0
    region = slab(rank, side)
    out = np.empty(region[1])
    with io.couple("cube", "read", rank=rank, size=READERS) as reader:
        go()

        def get(version: int) -> Array:
            reader.get("u", version, starts=region[0], counts=region[1], out=out)
            reader.commit(version)
            return out

        return read(get, region, side, versions)


def files(role: str, rank: int, side: int, versions: int, folder: Path) -> int:
    """One file a writer and version, read whole by each reader that needs cells of it; empty files say what is done."""

    def done(who: str, count: int, version: int) -> None:
        while not all((folder / f"{who}.{one}.{version}").exists() for one in range(count)):
            time.sleep(0.001)

    def put(version: int, array: Array) -> None:
        if version >= DEPTH:
            done("read", READERS, version - DEPTH)
        with (folder / f"cube.{rank}.{version}").open("wb", buffering=0) as file:
            file.write(array.data)
        (folder / f"write.{rank}.{version}").touch()

    if role == "write":
        go()
        write(put, box(rank, side), side, versions)
        return 0
    region = slab(rank, side)
    out = np.empty(region[1])

    def get(version: int) -> Array:
        done("write", WRITERS, version)
        for writer in range(WRITERS):
            starts, counts = box(writer, side)
            low, high = max(region[0][2], starts[2]), min(region[0][2] + region[1][2], starts[2] + counts[2])
            if low < high:
                part = np.fromfile(folder / f"cube.{writer}.{version}", "f8").reshape(counts)
                place = tuple(
                    slice(start, start + count) for start, count in zip(starts, counts, strict=True)
                )
                own = slice(low - region[0][2], high - region[0][2])
                out[place[0], place[1], own] = part[:, :, low - starts[2] : high - starts[2]]
        (folder / f"read.{rank}.{version}").touch()
        return out

    go()
    return read(get, region, side, versions)


def adios2(role: str, rank: int, side: int, versions: int, folder: Path) -> int:
    """ADIOS2's SST. The wheel of PyPI has no MPI: each writer is a stream of one rank, and each reader reads all."""
    import adios2.bindings as adios  # type: ignore[import-not-found]

    session = adios.ADIOS()

    def stream(writer: int, mode: Any) -> tuple[Any, Any]:
        settings = session.DeclareIO(f"cube{writer}")
        settings.SetEngine("SST")
        settings.SetParameters(
            {"RendezvousReaderCount": str(READERS), "QueueLimit": str(DEPTH), "QueueFullPolicy": "Block"}
        )
        return settings, settings.Open(str(folder / f"cube{writer}"), mode)

    if role == "write":
        starts, counts = box(rank, side)
        settings, engine = stream(rank, adios.Mode.Write)
        array = cells((starts, counts), side)
        shape = [side] * 3
        variable = settings.DefineVariable("u", array, shape, list(starts), list(counts), True)
        go()

        def put(version: int, given: Array) -> None:
            engine.BeginStep()
            engine.Put(variable, given, adios.Mode.Sync)
            engine.EndStep()

        write(put, (starts, counts), side, versions)
        engine.Close()
        return 0
    starts, counts = slab(rank, side)
    streams = [stream(writer, adios.Mode.Read) for writer in range(WRITERS)]
    out = np.empty(counts)
    parts: list[tuple[tuple[Any, Any], list[int], list[int] | None, Any, Any]] = []
    for writer in range(WRITERS):
        own, sides = box(writer, side)
        low = [max(a, b) for a, b in zip(starts, own, strict=True)]
        ends = [min(a + n, b + m) for a, n, b, m in zip(starts, counts, own, sides, strict=True)]
        cut = [end - begin for begin, end in zip(low, ends, strict=True)]
        if all(count > 0 for count in cut):
            place = tuple(slice(b - s, e - s) for b, e, s in zip(low, ends, starts, strict=True))
            parts.append((streams[writer], low, cut, place, np.empty(cut)))
        else:
            parts.append((streams[writer], low, None, None, None))
    go()

    def get(version: int) -> Array:
        for (settings, engine), low, cut, _, part in parts:
            engine.BeginStep()
            if cut is not None:
                variable = settings.InquireVariable("u")
                variable.SetSelection([low, cut])
                engine.Get(variable, part, adios.Mode.Deferred)
        for (_, engine), _, cut, place, part in parts:
            engine.EndStep()
            if cut is not None:
                out[place] = part
        return out

    lost = read(get, (starts, counts), side, versions)
    for (_, engine), *_ in parts:
        engine.Close()
    return lost


if __name__ == "__main__":
    method, role, rank, side, versions, folder = sys.argv[1:]
    run = {"waystage": waystage, "files": files, "adios2": adios2}[method]
    lost = run(role, int(rank), int(side), int(versions), Path(folder))
    print(json.dumps({"ended": time.monotonic(), "lost": lost}), flush=True)
