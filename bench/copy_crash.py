"""What 300 kills at random moments do to a copy, and what the next run sends again.

A tree of small files and of large ones is copied and killed by SIGKILL at a random moment, then copied again without a
limit. `corrupt` counts files with a final name and other bytes than the source's, right after a kill or at
the end; `missing` those missing or left over at the end; `resent_objects_per_worker` is the largest number,
of any kill, of objects (a small file, or an extent of a large one) of which a part had been written and which were
sent again, divided by the workers. It is counted from outside: objects sent by the second run, less those of which
nothing had been at the destination when the first was killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from waystage.bench import BenchError, BenchOptions
from waystage.stats import median

KILLS, KILLS_QUICK = 300, 6
WORKERS = 2
EXTENT_BYTES = 32 << 20
SMALL_FILES, LARGE_FILES = 400, 2
LARGE_BYTES = 3 * EXTENT_BYTES + 12_345
OWN = ".waystage-copy"
TAKES_S = 300, 10


def run(options: BenchOptions) -> dict[str, Any]:
    kills = options.repetitions or (KILLS_QUICK if options.quick else KILLS)
    chance = random.Random(20)
    corrupt = missing = finished = 0
    resent: list[int] = []
    resumed: list[float] = []
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-crash-", dir=given) as folder:
        tree, copy = Path(folder) / "tree", Path(folder) / "copy"
        contents = make_tree(tree, chance)
        usual_s = _usual(tree, copy)
        for kill in options.limit.steps(range(kills)):
            options.progress(f"kill {kill + 1} of {kills}", kill / kills)
            shutil.rmtree(copy, ignore_errors=True)
            if not _killed(tree, copy, chance.uniform(0.0, usual_s)):
                finished += 1
                continue
            corrupt += _corrupt(copy, contents)
            untouched = _untouched(copy, contents)
            answer, seconds = _copy(tree, copy)
            resent.append(answer["counts"]["objects"] - untouched)
            resumed.append(seconds)
            corrupt += _corrupt(copy, contents)
            names = {str(p.relative_to(copy)) for p in copy.rglob("*") if not p.is_dir()}
            missing += len(names ^ set(contents)) + (copy / OWN).exists()
    if not resent:
        raise BenchError(
            "every copy was complete before it was killed: the machine is too fast for this tree"
        )
    return {
        "figures": {
            "corrupt": corrupt,
            "missing": missing,
            "resent_objects_per_worker": round(max(resent) / WORKERS, 2),
        },
        "details": {
            "kills_while_copying": len(resent),
            "complete_before_the_kill": finished,
            "mean_resent_objects_per_worker": round(sum(resent) / len(resent) / WORKERS, 3),
            "median_resume_s": round(median(resumed), 3),
            "usual_s": round(usual_s, 3),
            "files": len(contents),
            "bytes": sum(len(content) for content in contents.values()),
            "workers": WORKERS,
        },
    }


def make_tree(tree: Path, chance: random.Random) -> dict[str, bytes]:
    """Contents by path."""
    contents = {
        f"small/{n % 9}/{n}": chance.randbytes(chance.randrange(1, 20_000)) for n in range(SMALL_FILES)
    }
    contents |= {f"large/{n}": chance.randbytes(1 << 20) * (LARGE_BYTES >> 20) for n in range(LARGE_FILES)}
    for path, content in contents.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    return contents


def _command(tree: Path, copy: Path) -> list[str]:
    workers = ["--workers", str(WORKERS)]
    return [sys.executable, "-m", "waystage", "copy", str(tree), str(copy), "--json", *workers]


def _copy(tree: Path, copy: Path) -> tuple[dict[str, Any], float]:
    began = time.monotonic()
    done = subprocess.run(_command(tree, copy), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the copy after a kill failed: {done.stdout.strip()[-300:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, time.monotonic() - began


def _usual(tree: Path, copy: Path) -> float:
    """The duration of a copy from the creation of its journal: kills are spread over it."""
    times: list[float] = []
    for _ in range(3):
        shutil.rmtree(copy, ignore_errors=True)
        times.append(_copy(tree, copy)[0]["seconds"])
    return max(times)


def _killed(tree: Path, copy: Path, after_s: float) -> bool:
    """Start a copy and kill it some time after it has begun; whether it was still copying."""
    process = subprocess.Popen(_command(tree, copy), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = copy / OWN / "journal"
    while not journal.exists() and process.poll() is None:
        time.sleep(0.001)
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return journal.exists()


def _corrupt(copy: Path, contents: dict[str, bytes]) -> int:
    """Files with a final name whose bytes are not the source's."""
    wrong = 0
    for path in copy.rglob("*"):
        name = str(path.relative_to(copy))
        if path.is_file() and OWN not in name:
            wrong += name not in contents or path.read_bytes() != contents[name]
    return wrong


def _untouched(copy: Path, contents: dict[str, bytes]) -> int:
    """Objects of which no byte is at the destination."""
    small = sum(not (copy / name).exists() for name in contents if name.startswith("small/"))
    partial = [path for path in copy.rglob(f"{OWN}*.part") if path.stat().st_size > 0]
    half_small = sum("-large-" not in path.name for path in partial)
    size = len(next(content for name, content in contents.items() if name.startswith("large/")))
    extents = -(-size // EXTENT_BYTES)
    begun = [_touched(path) for path in partial if "-large-" in path.name]
    whole = sum((copy / name).exists() for name in contents if name.startswith("large/"))
    return small - half_small + extents * (LARGE_FILES - whole) - sum(begun)


def _touched(partial: Path) -> int:
    """Extents of a partial file that have data."""
    size = partial.stat().st_size
    touched = 0
    with open(partial, "rb") as file:
        for start in range(0, size, EXTENT_BYTES):
            try:
                data = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError:
                break
            touched += data < min(start + EXTENT_BYTES, size)
    return touched
