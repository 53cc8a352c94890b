"""Restriping a tree in place, against copying each file by hand; and 100 runs that are killed.

Both on the emulated striped file system with the metadata and storage targets of the shape `nurion`, with real files:
mostly small ones, some of 16 MiB. Every file has one stripe and is to have four. By hand means what an administrator's
loop does: `cp -p` each file into a folder that has the new layout, and `mv` it over the old one. It loses access control
lists and hard links, and a change that comes between the two; `waystage restripe` keeps them and forces data to storage
before each rename.

`x_cp` is how many times as long the loop takes, as the ratio of medians; `x_cp_parallel`, without a bar, is that of the
loop with as many processes as restriping has threads. `corrupt` counts, over 100 runs of `waystage restripe` that are
ended by `kill -9` at random moments, the files whose name, contents, owner, mode or times differ after a kill, the
groups of hard links that are not whole after the last run, and what is left over then. A turn whose emulation was late
is not valid.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from waystage._native import read_layout
from waystage.bench import BenchError, BenchOptions, Figures, take_turns
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs.validity import why_invalid

FILES, FILES_QUICK = 300, 30
LARGE, LARGE_QUICK = 4, 1
LARGE_BYTES = 16 << 20
TURNS = 5
DILATION = 3.0
"""Real seconds of an emulated one, so that two cores answer in time; the kills are at 1."""
KILLS, KILLS_QUICK = 100, 3
WORKERS = 8
STRIPES = 4

FACTS_FILES = 120
"""Files of the tree whose restriping is killed; every third has one or two more hard links."""


Way = Callable[[Path, Path, Path], None]
"""A way of restriping: the tree, the mount point, a folder with the layout."""
TAKES_S = 200, 40


def run(options: BenchOptions) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise BenchError("mounting the emulated file system needs root")
    with tempfile.TemporaryDirectory(prefix="waystage-restripe-") as name:
        folder = Path(name)
        (folder / "layout").write_bytes(_layout())
        work: dict[str, Way] = {
            "waystage": _ours,
            "cp": partial(_by_hand, 1),
            "cp_parallel": partial(_by_hand, WORKERS),
        }
        contestants = {key: partial(_once, way, folder, options.quick) for key, way in work.items()}
        turns = take_turns(
            options,
            contestants,
            turns=TURNS,
            quick=1,
            invalid=lambda figures: figures["emulation"] or None,
        )
        kills = KILLS_QUICK if options.quick else KILLS
        corrupt, landed = _kill(options, folder, kills)
    return {
        "figures": {
            "x_cp": round(turns.ratio("cp", "waystage", "seconds"), 2),
            "x_cp_parallel": round(turns.ratio("cp_parallel", "waystage", "seconds"), 2),
            "corrupt": len(corrupt),
        },
        "peers": {f"{key}_s": round(turns.median(key, "seconds"), 3) for key in contestants},
        "details": turns.details()
        | {
            "kills": kills,
            "kills_before_the_end": landed,
            "corrupt": corrupt[:20],
            "emulated": "ratios measure the method and no Lustre",
        },
    }


def _layout() -> bytes:
    """`lov_user_md_v1` of four stripes of 1 MiB on any targets, as `lfs setstripe -c 4 -S 1M` sends it."""
    return bytes.fromhex("d00bd10b01000000" + "00" * 16 + "000010000400ffff")


@contextmanager
def _mounted(folder: Path, dilation: float = 1.0) -> Iterator[tuple[Path, pfs.Mounted]]:
    point, files = folder / "point", folder / "files"
    for path in (point, files):
        path.mkdir(exist_ok=True)
    shape = msgspec.structs.replace(pfs.load("nurion"), dilation=dilation)
    made = pfs.mount(point, shape, folder=files)
    try:
        yield point, made
    finally:
        pfs.unmount(point, force=True)
        subprocess.run(["rm", "-rf", str(files)], check=True)


def _once(way: Way, folder: Path, quick: bool, turn: int) -> Figures:
    rng = random.Random(1)
    with _mounted(folder, DILATION) as (point, made):
        tree = point / "tree"
        tree.mkdir()
        data = rng.randbytes(LARGE_BYTES)
        for number in range(FILES_QUICK if quick else FILES):
            parent = tree / f"d{number % 10}"
            parent.mkdir(exist_ok=True)
            (parent / f"f{number}").write_bytes(data[: int(rng.lognormvariate(10, 1.5)) % (1 << 20)])
        for number in range(LARGE_QUICK if quick else LARGE):
            (tree / f"large{number}").write_bytes(data)
        before = {path.relative_to(tree): _facts(path) for path in _files(tree)}
        # Nothing of the making is to be written out meanwhile.
        os.sync()
        pfs.reset(made)
        began = time.monotonic()
        way(tree, point, folder)
        seconds = time.monotonic() - began
        emulation = why_invalid(pfs.statistics(made))
        if {path.relative_to(tree): _facts(path) for path in _files(tree)} != before:
            raise BenchError("the files are not what they were")
        if any(_stripes(path) != STRIPES for path in _files(tree)):
            raise BenchError("some files have not the layout")
    return {"seconds": seconds, "emulation": emulation or ""}


def _ours(tree: Path, point: Path, folder: Path) -> None:
    layout = f"stripes={STRIPES},stripe_size=1Mi"
    subprocess.run(_command(tree, layout), check=True, stdout=subprocess.DEVNULL)


def _command(tree: Path, layout: str) -> list[str]:
    waystage = [sys.executable, "-m", "waystage", "restripe"]
    return [*waystage, str(tree), "--layout", layout, "--workers", str(WORKERS), "--quiet"]


def _by_hand(processes: int, tree: Path, point: Path, folder: Path) -> None:
    new = point / "new"
    new.mkdir()
    os.setxattr(new, "lustre.lov", (folder / "layout").read_bytes())
    loop = f'for f; do t={new}/$$.tmp; cp -p "$f" "$t" && mv "$t" "$f" || exit 1; done'
    many = ["xargs", "-0", "-P", str(processes), "-n", "32", "sh", "-c", loop, "sh"]
    names = b"\0".join(os.fsencode(path) for path in _files(tree))
    subprocess.run(many, input=names, check=True)
    new.rmdir()


def _files(tree: Path) -> list[Path]:
    return [path for path in tree.rglob("*") if path.is_file() and ".waystage" not in str(path)]


def _stripes(path: Path) -> int:
    layout = read_layout(path)
    return 0 if layout is None else int(layout["components"][0]["stripe_count"])


def _facts(path: Path) -> tuple[object, ...]:
    about = path.stat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, digest)


def _groups(tree: Path) -> set[frozenset[Path]]:
    names: dict[int, set[Path]] = {}
    for path in _files(tree):
        names.setdefault(path.stat().st_ino, set()).add(path)
    return {frozenset(group) for group in names.values()}


def _kill(options: BenchOptions, folder: Path, kills: int) -> tuple[list[str], int]:
    """What was wrong after any of the kills, and how many of them came before the end of a run."""
    rng = random.Random(7)
    with _mounted(folder) as (point, _):
        tree = point / "tree"
        tree.mkdir()
        for number in range(FACTS_FILES):
            path = tree / f"f{number}"
            path.write_bytes(rng.randbytes(rng.choice([0, 100, 10_000, 300_000])))
            os.chown(path, number, 1000 + number)
            path.chmod(0o640)
            os.utime(path, ns=(number, 10**18 + number))
            for link in range(number % 3):
                os.link(path, tree / f"l{number}-{link}")
        before = {path: _facts(path) for path in _files(tree)}
        groups = _groups(tree)
        began = time.monotonic()
        subprocess.run(_command(tree, "stripes=2"), check=True)
        whole_s = time.monotonic() - began
        corrupt: list[str] = []
        landed = 0
        for number in range(kills):
            options.progress(f"kill {number + 1} of {kills}", number / kills)
            # Another layout each time, so that there is always something to do.
            running = subprocess.Popen(_command(tree, f"stripes={2 + number % 3}"))
            time.sleep(rng.uniform(0.2, 1.1) * whole_s)
            landed += running.poll() is None
            running.kill()
            running.wait()
            now = {path: _facts(path) for path in _files(tree)}
            corrupt += [f"kill {number}: {path.name}" for path in before if now.get(path) != before[path]]
            corrupt += [f"kill {number}: {path.name} is new" for path in now if path not in before]
        subprocess.run(_command(tree, f"stripes={STRIPES}"), check=True)
        corrupt += [f"end: {path.name}" for path in before if _facts(path) != before[path]]
        corrupt += [f"end: {min(group).name}: hard links" for group in groups - _groups(tree)]
        corrupt += [f"end: {name} is left" for name in os.listdir(tree) if name.startswith(".waystage")]
        corrupt += [f"end: {path.name}: layout" for path in before if _stripes(path) != STRIPES]
    return corrupt, landed
