"""How fast a tree is walked and every entry looked at, against find, fd and a plain scandir walk.

A tree of small files on the file system of the temporary folder (or $WAYSTAGE_BENCH_TREE, which must lie on ext4 for
the promised figures) is walked warm and, after the caches are dropped, cold. Everyone asks for the same: type, size, three
times, mode, owner, group, inode, device, links and blocks of every entry. All take turns, and medians are compared.

`layout_fraction` is the rate with an attribute read of every file, as on Lustre, over the rate without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waystage._native import TreeWalk
from waystage.bench import BenchError, BenchOptions
from waystage.catalog import BuildOptions, build
from waystage.stats import median

FILES = 1_000_000
FILES_QUICK = 20_000
FILES_PER_DIRECTORY = 50
DIRECTORIES_PER_DIRECTORY = 100
FIND_FORMAT = r"%p\t%y\t%s\t%T@\t%C@\t%A@\t%m\t%U\t%G\t%i\t%D\t%n\t%b\n"
WARM_TURNS = 5
COLD_TURNS = 3
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

Walker = Callable[[Path], int]
"""Walks a tree; returns how many entries it saw, or 0 where it does not say."""


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("the cold walk drops the kernel's caches, which only root may: run as root")
    find = shutil.which("find")
    if find is None:
        raise BenchError("GNU find is not installed: apt-get install findutils")
    files = FILES_QUICK if options.quick else FILES
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-walk-", dir=given) as folder:
        tree = Path(folder) / "tree"
        options.progress(f"making {files:,} files", 0.0)
        entries = make_tree(tree, files)
        peers = {"find": _program([find, str(tree), "-printf", FIND_FORMAT]), "scandir": scandir_walk}
        fd = shutil.which("fd") or shutil.which("fdfind")
        if fd is not None:
            # A condition on size makes fd look at every entry; it matches all.
            peers["fd"] = _program([fd, "-u", "--size", "+0b", ".", str(tree)])
        walks: dict[str, Walker] = {"waystage": walk, "attribute": walk_attribute, "layouts": walk_each}
        warm = _turns(tree, {**walks, **peers}, options.repetitions or WARM_TURNS, False, options, 0.3)
        cold_by = {"waystage": walk, "find": peers["find"]}
        cold = _turns(tree, cold_by, min(options.repetitions or COLD_TURNS, COLD_TURNS), True, options, 0.7)
        options.progress("building a catalog", 0.95)
        began = time.monotonic()
        built = build(tree, Path(folder) / "catalog", BuildOptions())
        build_s = time.monotonic() - began
        if built.entries != entries or walk(tree) != entries:
            raise BenchError(f"the tree has {entries} entries, and the walk found {built.entries}")
    medians = {name: median(seconds) for name, seconds in warm.items()}
    best = min((name for name in peers), key=lambda name: medians[name])
    figures = {
        "warm_x_find": round(medians["find"] / medians["waystage"], 2),
        "cold_x_find": round(median(cold["find"]) / median(cold["waystage"]), 2),
        "warm_x_best": round(medians[best] / medians["waystage"], 2),
        "layout_fraction": round(medians["waystage"] / medians["attribute"], 3),
    }
    return {
        "figures": figures,
        "peers": {f"{name}_warm_entries_per_s": round(entries / medians[name]) for name in peers}
        | {"find_cold_entries_per_s": round(entries / median(cold["find"])), "best": best},
        "details": {
            "entries": entries,
            "warm_entries_per_s": round(entries / medians["waystage"]),
            "warm_entries_per_s_with_layouts": round(entries / medians["layouts"]),
            "warm_entries_per_s_with_an_attribute": round(entries / medians["attribute"]),
            "cold_entries_per_s": round(entries / median(cold["waystage"])),
            "build_entries_per_s": round(entries / build_s),
            "warm_s": {name: [round(s, 4) for s in seconds] for name, seconds in warm.items()},
            "cold_s": {name: [round(s, 4) for s in seconds] for name, seconds in cold.items()},
        },
    }


def make_tree(tree: Path, files: int) -> int:
    """Make the tree; returns how many entries lie below its top."""
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
    return _drain(TreeWalk(tree, threads=BuildOptions().thread_count()))


def walk_attribute(tree: Path) -> int:
    """The same, asking every file for Lustre's attribute."""
    return _drain(TreeWalk(tree, threads=BuildOptions().thread_count(), layouts="attribute"))


def walk_each(tree: Path) -> int:
    """The same, with layouts as this file system tells them."""
    return _drain(TreeWalk(tree, threads=BuildOptions().thread_count(), layouts="each"))


def _drain(walking: TreeWalk) -> int:
    seen, ended = 0, False
    while not ended:
        batch, ended = walking.next(1.0)
        if batch is not None:
            seen += len(batch.take()[0]["size"])
    return seen


def scandir_walk(tree: Path) -> int:
    """What a program in Python does today."""
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
    tree: Path, walkers: dict[str, Walker], turns: int, cold: bool, options: BenchOptions, share: float
) -> dict[str, list[float]]:
    """Seconds of each walker, taking turns; warm ones have one turn that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in walkers}
    for turn in range(turns + (0 if cold else 1)):
        for name, walker in walkers.items():
            options.progress(f"{'cold' if cold else 'warm'}: {name}", share + 0.25 * turn / (turns + 1))
            if cold:
                os.sync()
                DROP_CACHES.write_text("3\n")
            began = time.monotonic()
            walker(tree)
            if cold or turn > 0:
                taken[name].append(time.monotonic() - began)
    return taken
