"""How much faster the loader delivers small files than a plain loop, threads and PyTorch's workers.

50,000 files of 4 KiB in 50 directories, in an epoch's shuffled order, catalogued beforehand: `warm` from the page cache,
`cold` after the kernel's caches were dropped, and `pfs` from the emulated striped file system in the shape `nurion`
(docs/reference/pfs.md), with fewer files. Every contestant has the list of files before it starts and delivers every
file's bytes to one consumer in the same process, which adds up their lengths. The loader's order is drawn in its time.

`loop` opens, reads and closes one file after the other with `os.open`, `os.read` and `os.close`; it knows the size
beforehand, since a larger buffer costs it a mapping a file or not, as the allocator likes. `threads` does the same
in as many threads as the loader has, 256 files a task on a warm cache and one a task otherwise. `pytorch`, where it is
installed, is a DataLoader whose workers, one a core, read files likewise. `warm_x_loop` is how many times as fast as the
loop the loader is, as the ratio of medians; `cold_x_threads` and `pfs_x_threads` are the same against the threads.
`warm_x_floor` is the time of `_loader_floor.c` over the loader's: the system calls alone, by a thread a core of one
process, which deliver nothing.
`pfs_x_floor` is what the busiest metadata server of the emulation needs for one open and one close a file over the
loader's time: 1 cannot be exceeded, by threads neither. A turn that lacks a byte, or in which the emulation was late, is
not valid.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage.bench import (
    BenchError,
    BenchOptions,
    Figures,
    compile_c,
    drop_caches,
    take_turns,
)
from waystage.catalog import BuildOptions, Catalog
from waystage.loader import Loader
from waystage.loader.files import FileSet, file_set
from waystage.machine import SHORT_OF_CPU_IDLE_PCT
from waystage.worlds.lab import pfs

FILES, FILES_QUICK = 50_000, 5_000
FILES_PFS, FILES_PFS_QUICK = 6_000, 600
BYTES = 4096
DIRECTORIES = 50
TURNS = 5
THREADS = 96
"""As many as the loader starts at most."""

SEED = 7
EPOCHS = 1000
"""Orders that are drawn; warm-up turns have negative numbers."""
TOGETHER = 256
DILATION = 8.0
"""Seconds of real time for one emulated second, so that this machine keeps up."""

TAKES_S = 150, 15

STATISTICS = ".waystage-statistics"
FLOOR = Path(__file__).with_name("_loader_floor.c")

Reader = Callable[[int], int]
"""Reads all files once in the turn of this number; returns how many bytes there were."""


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise BenchError("dropping caches and mounting the emulated file system need root and /dev/fuse")
    files, files_pfs = (FILES_QUICK, FILES_PFS_QUICK) if options.quick else (FILES, FILES_PFS)
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-loader-small-", dir=given) as name:
        folder = Path(name)
        tree, point = folder / "tree", folder / "point"
        options.progress(f"making {files:,} files", 0.0)
        _make_tree(tree, files)
        point.mkdir()
        shape = _shape(files_pfs)
        mounted = pfs.mount(point, shape)
        try:
            places = {
                "warm": _place(tree, folder / "tree.catalog", files, before=_nothing),
                "cold": _place(tree, folder / "tree.catalog", files, before=drop_caches),
                "pfs": _place(point, folder / "point.catalog", files_pfs, before=partial(pfs.reset, mounted)),
            }
            readers = {case: _readers(case, place) for case, place in places.items()}
            readers["warm"]["floor"] = _floor(folder, places["warm"])
            contestants = {
                (case, reader): partial(_once, places[case], read, mounted if case == "pfs" else None)
                for case in places
                for reader, read in readers[case].items()
            }
            turns = take_turns(
                options.part("reading", 0.1, 1.0),
                contestants,
                turns=TURNS,
                quick=1,
                warm_up=1,
                invalid=_why_invalid,
                case=lambda name: name[0],
            )
        finally:
            pfs.unmount(point, force=True)

    def times(case: str, reader: str) -> float:
        return round(turns.ratio((case, reader), (case, "waystage"), "seconds"), 2)

    names = [name for name in contestants if name[0] not in turns.missing]
    return {
        "figures": options.limit.known(
            {
                "warm_x_loop": lambda: times("warm", "loop"),
                "warm_x_floor": lambda: times("warm", "floor"),
                "cold_x_threads": lambda: times("cold", "threads"),
                "pfs_x_threads": lambda: times("pfs", "threads"),
                "pfs_x_floor": lambda: round(
                    _metadata_s(shape, files_pfs) / turns.median(("pfs", "waystage"), "seconds"), 2
                ),
            }
        ),
        "peers": {f"{case}_x_{reader}": times(case, reader) for case, reader in names if reader != "waystage"}
        | {f"{case}_{reader}_s": round(turns.median((case, reader), "seconds"), 3) for case, reader in names},
        "details": turns.details() | {"files": files, "files_pfs": files_pfs, "threads": THREADS},
    }


@dataclass(frozen=True)
class Place:
    """A catalogued tree; `before` is called before each reading of it."""

    root: Path
    files: FileSet
    paths: list[str]
    before: Callable[[], object]


def _place(root: Path, catalog: Path, files: int, before: Callable[[], object]) -> Place:
    if not catalog.exists():
        Catalog.build(root, catalog, BuildOptions(exclude=(f"/{STATISTICS}",)))
    paths = sorted(os.fsdecode(entry.path) for entry in Catalog(catalog).query(types="f"))
    if len(paths) != files:
        raise BenchError(f"{root} has {len(paths)} files and not {files}")
    random.Random(SEED).shuffle(paths)
    return Place(root, file_set(catalog), paths, before)


def _once(place: Place, read: Reader, mounted: pfs.Mounted | None, turn: int) -> Figures:
    place.before()
    began = time.perf_counter()
    found = read(turn)
    seconds = time.perf_counter() - began
    if found != len(place.paths) * BYTES:
        raise BenchError(f"{found} of {len(place.paths) * BYTES} bytes were there")
    late = "" if mounted is None else pfs.why_invalid(pfs.statistics(mounted)) or ""
    return {"seconds": seconds, "emulation": late, "cached": place.before is _nothing}


def _why_invalid(figures: Figures) -> str | None:
    """Files that are read from the page cache take all processors: the others leave some idle."""
    if not figures["cached"] and figures["idle_pct"] < SHORT_OF_CPU_IDLE_PCT:
        return f"the machine was {figures['idle_pct']} % idle, less than {SHORT_OF_CPU_IDLE_PCT} %"
    return figures["emulation"] or None


def _readers(case: str, place: Place) -> dict[str, Reader]:
    together = TOGETHER if case == "warm" else 1
    readers: dict[str, Reader] = {
        "waystage": partial(_waystage, place),
        "threads": partial(_threads, place, together),
    }
    if case == "warm":
        readers["loop"] = partial(_loop, place)
    if importlib.util.find_spec("torch") is not None:
        readers["pytorch"] = partial(_pytorch, place)
    return readers


def _waystage(place: Place, turn: int) -> int:
    with Loader(place.files, seed=SEED, epoch=turn % EPOCHS) as loader:
        return sum(len(data) for _, data in loader)


def _loop(place: Place, turn: int) -> int:
    root = str(place.root)
    return sum(len(_read(root, path)) for path in place.paths)


def _read(root: str, path: str) -> bytes:
    fd = os.open(f"{root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, BYTES + 1)
    finally:
        os.close(fd)


def _floor(folder: Path, place: Place) -> Reader:
    """The bare system calls, compiled in `folder`. Raises BenchError."""
    bare = ctypes.CDLL(str(compile_c(FLOOR, into=folder, shared=True))).loader_floor
    bare.restype = ctypes.c_long
    bare.argtypes = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_size_t, ctypes.c_int
    root, paths = os.fsencode(place.root), b"".join(os.fsencode(path) + b"\0" for path in place.paths)
    threads = len(os.sched_getaffinity(0))
    return lambda turn: int(bare(root, paths, len(place.paths), BYTES, threads))


def _threads(place: Place, together: int, turn: int) -> int:
    root, paths = str(place.root), place.paths

    def some(at: int) -> list[bytes]:
        return [_read(root, path) for path in paths[at : at + together]]

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(len(data) for read in pool.map(some, range(0, len(paths), together)) for data in read)


def _pytorch(place: Place, turn: int) -> int:
    from torch.utils.data import DataLoader, Dataset

    root, paths = str(place.root), place.paths

    class Files(Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> bytes:
            return _read(root, paths[index])

    workers = len(os.sched_getaffinity(0))
    loaded = DataLoader(Files(), batch_size=TOGETHER, num_workers=workers, collate_fn=list)
    return sum(len(data) for batch in loaded for data in batch)


def _nothing() -> None:
    """The files stay where the last reading left them."""


def _make_tree(tree: Path, files: int) -> None:
    for directory in range(DIRECTORIES):
        below = tree / f"d{directory:02d}"
        below.mkdir(parents=True)
        for number in range(files // DIRECTORIES):
            (below / f"f{number:05d}").write_bytes(os.urandom(BYTES))


def _metadata_s(shape: pfs.Shape, files: int) -> float:
    """Seconds of real time in which the metadata servers answer one open and one close a file."""
    return 2 * files / (shape.metadata.servers * shape.metadata.messages_per_s) * shape.dilation


def _shape(files: int) -> pfs.Shape:
    nurion = pfs.load("nurion")
    return msgspec.structs.replace(
        nurion,
        tree=pfs.shape.Tree(files=files, size=BYTES, files_per_directory=files // DIRECTORIES),
        client=msgspec.structs.replace(nurion.client, pages="direct"),
        dilation=DILATION,
    )
