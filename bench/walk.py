"""How fast a tree is walked with every entry's attributes, against find, fd and a plain scandir walk.

A tree of small files on the file system of the temporary folder (or $WAYSTAGE_BENCH_TREE, which must be on ext4 for the
promised figures) is walked warm and, after the caches are dropped, cold. Every walk asks for the same: type, size,
three times, mode, owner, group, inode, device, links and blocks of every entry. Figures are ratios of medians.

`layout_fraction` is the rate with an attribute read of every file, as on Lustre, over the rate without.

The floor is `_walk_floor.c`, called in this process: openat, getdents64 and statx by as many threads, with none of their
answers kept. `x_floor` is its time over ours, warm; `layouts_x_floor` the same where both read the attribute of every
file too, by getxattrat, and `floor_layout_fraction` what that call alone leaves of the bare loop's rate.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from waystage._native import TreeWalk
from waystage.bench import (
    BenchError,
    BenchOptions,
    Figures,
    Turns,
    compile_c,
    drop_caches,
    installed,
    take_turns,
    timed,
)
from waystage.catalog import BuildOptions, Catalog, build
from waystage.native_options.walks import WalkOptions

FILES = 1_000_000
FILES_QUICK = 20_000
FILES_PER_DIRECTORY = 50
DIRECTORIES_PER_DIRECTORY = 100
FIND_FORMAT = r"%p\t%y\t%s\t%T@\t%C@\t%A@\t%m\t%U\t%G\t%i\t%D\t%n\t%b\n"
WARM_TURNS = 5
COLD_TURNS = 3
FLOOR = Path(__file__).with_name("_walk_floor.c")
ATTRIBUTE = b"lustre.lov"
"""That of Lustre's layouts, which `walk_attribute` asks for."""

Walker = Callable[[Path], int]
"""Walks a tree; returns how many entries it saw, or 0 for a program that does not count."""
TAKES_S = 240, 30


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("the cold walk drops the kernel's caches, which only root may: run as root")
    find = installed("find", "findutils")
    files = FILES_QUICK if options.quick else FILES
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-walk-", dir=given) as folder:
        tree = Path(folder) / "tree"
        options.progress(f"making {files:,} files", 0.0)
        entries = make_tree(tree, files)
        peers = {"find": _program([find, str(tree), "-printf", FIND_FORMAT]), "scandir": scandir_walk}
        fd = shutil.which("fd") or shutil.which("fdfind")
        if fd is not None:
            # A condition on size makes fd stat every entry; it matches all.
            peers["fd"] = _program([fd, "-u", "--size", "+0b", ".", str(tree)])
        floors = bare_walks(Path(folder), entries)
        walks: dict[str, Walker] = {"waystage": walk, "attribute": walk_attribute, "layouts": walk_each}
        warm = _turns(options.part("warm", 0.3, 0.7), tree, walks | floors | peers, cold=False, parts=2)
        cold_walks = {"waystage": walk, "find": peers["find"]}
        cold = _turns(options.part("cold", 0.7, 0.95), tree, cold_walks, cold=True, parts=1)
        options.progress("building a catalog", 0.95)
        catalog = Path(folder) / "catalog"
        build_s = timed(lambda: build(tree, catalog, BuildOptions()))["seconds"]
        if (found := Catalog(catalog).rows) != entries or walk(tree) != entries:
            raise BenchError(f"the tree has {entries} entries, and the walk found {found}")
    seconds = warm.medians("seconds")
    best = min(peers, key=lambda name: seconds[name])
    return {
        "figures": {
            "warm_x_find": round(seconds["find"] / seconds["waystage"], 2),
            "cold_x_find": round(cold.ratio("find", "waystage", "seconds"), 2),
            "warm_x_best": round(seconds[best] / seconds["waystage"], 2),
            "layout_fraction": round(seconds["waystage"] / seconds["attribute"], 3),
            "x_floor": round(seconds["floor"] / seconds["waystage"], 3),
            "layouts_x_floor": round(seconds["floor with attribute"] / seconds["attribute"], 3),
        },
        "peers": {f"{name}_warm_entries_per_s": round(entries / seconds[name]) for name in peers}
        | {"find_cold_entries_per_s": round(entries / cold.median("find", "seconds")), "best": best},
        "details": {
            "entries": entries,
            "floor_layout_fraction": round(seconds["floor"] / seconds["floor with attribute"], 3),
            "floor_entries_per_s": round(entries / seconds["floor"]),
            "warm_entries_per_s": round(entries / seconds["waystage"]),
            "warm_entries_per_s_with_layouts": round(entries / seconds["layouts"]),
            "warm_entries_per_s_with_an_attribute": round(entries / seconds["attribute"]),
            "cold_entries_per_s": round(entries / cold.median("waystage", "seconds")),
            "build_entries_per_s": round(entries / build_s),
            "warm": warm.details(),
            "cold": cold.details(),
        },
    }


def make_tree(tree: Path, files: int) -> int:
    """Make the tree; returns how many entries are below its top."""
    tree.mkdir()
    entries = 0
    for number in range(-(-files // FILES_PER_DIRECTORY)):
        group, position = divmod(number, DIRECTORIES_PER_DIRECTORY)
        if position == 0:
            os.mkdir(tree / f"group-{group:04d}")
            entries += 1
        folder = tree / f"group-{group:04d}" / f"run-{position:03d}"
        os.mkdir(folder)
        fd = os.open(folder, os.O_RDONLY)
        try:
            for file in range(min(FILES_PER_DIRECTORY, files - number * FILES_PER_DIRECTORY)):
                os.close(os.open(f"output-{file:06d}.dat", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
                entries += 1
        finally:
            os.close(fd)
        entries += 1
    os.sync()
    return entries


def walk(tree: Path) -> int:
    """Waystage's walk; its columns are taken and dropped."""
    return _drain(TreeWalk(tree, WalkOptions(threads=BuildOptions().thread_count())))


def walk_attribute(tree: Path) -> int:
    """The same, asking every file for Lustre's attribute."""
    return _drain(TreeWalk(tree, WalkOptions(threads=BuildOptions().thread_count(), layouts="attribute")))


def walk_each(tree: Path) -> int:
    """The same, with the layouts of this file system."""
    return _drain(TreeWalk(tree, WalkOptions(threads=BuildOptions().thread_count(), layouts="each")))


def bare_walks(folder: Path, entries: int) -> dict[str, Walker]:
    """The bare loops, compiled in `folder`, for a tree with that many entries. Raises BenchError."""
    bare = ctypes.CDLL(str(compile_c(FLOOR, into=folder, shared=True))).walk_floor
    bare.restype, bare.argtypes = ctypes.c_long, (ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
    threads = BuildOptions().thread_count()

    def loop(attribute: bytes | None, tree: Path) -> int:
        if (found := bare(os.fsencode(tree), threads, attribute)) != entries:
            raise BenchError(f"the tree has {entries} entries, and the bare loop found {found}")
        return entries

    return {"floor": partial(loop, None), "floor with attribute": partial(loop, ATTRIBUTE)}


def _drain(walking: TreeWalk) -> int:
    seen, ended = 0, False
    while not ended:
        ended = walking.wait()
        if (batch := walking.next()) is not None:
            seen += len(batch.take()[0]["size"])
    return seen


def scandir_walk(tree: Path) -> int:
    """The usual walk in Python."""
    seen, waiting = 0, [str(tree)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                seen += 1
                entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return seen


def _program(arguments: list[str]) -> Walker:
    def started(tree: Path) -> int:
        subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
        return 0

    return started


def _turns(
    options: BenchOptions, tree: Path, walkers: Mapping[str, Walker], *, cold: bool, parts: int
) -> Turns:
    """Walks, for their share of the time where `parts` of the run are left."""
    turns = COLD_TURNS if cold else WARM_TURNS
    contestants = {name: partial(_measured, tree, walker, cold) for name, walker in walkers.items()}
    at_most = turns if cold else None
    return take_turns(
        options,
        contestants,
        turns=turns,
        quick=turns,
        at_most=at_most,
        warm_up=0 if cold else 1,
        parts=parts,
    )


def _measured(tree: Path, walker: Walker, cold: bool, turn: int) -> Figures:
    if cold:
        drop_caches()
    return timed(lambda: walker(tree))
