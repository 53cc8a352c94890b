"""What `waystage copy` has measured, by pair of storage: a small file of the user's.

Arrives: a finished copy's bytes, files and seconds; a pair of ends.
Leaves: the measurements of that pair, the latest first.
Must not know: copies, what the measurements are for.

The file is bounded: of each pair `PER_SHAPE` copies of a size, of `PAIRS` pairs. A file that cannot be read or written
costs the estimate and nothing else. `$WAYSTAGE_RATES` names another file, or `none`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from waystage.bounded import read_bounded
from waystage.outputs import write_whole
from waystage.staging.rates import LEAST_SECONDS, Measured, shape_of

PAIRS, PER_PAIR, PER_SHAPE = 64, 120, 8
MOST_BYTES = 4 << 20

Kept = TypeVar("Kept", bound=Measured)


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One measured transfer."""

    bytes: int
    files: int
    seconds: float


def kept(samples: Sequence[Kept], per_shape: int = PER_SHAPE, most: int = PER_PAIR) -> list[Kept]:
    """Of samples, the latest first, the latest of each size: many equal ones displace none of another size."""
    counts: dict[tuple[int, int], int] = {}
    found = []
    for each in samples:
        shape = shape_of(each.bytes, each.files)
        counts[shape] = counts.get(shape, 0) + 1
        if counts[shape] <= per_shape:
            found.append(each)
    return found[:most]


def samples_of(pair: str) -> list[Sample]:
    """Copies measured between these ends, the latest first; none where the file cannot be read."""
    path = _path()
    return _read(path).get(pair, []) if path is not None else []


def measured(pair: str, sample: Sample) -> None:
    """Keep a copy's measurement. Another process that writes at the moment takes precedence."""
    path = _path()
    if path is None or sample.seconds < LEAST_SECONDS or not sample.bytes:
        return
    with contextlib.suppress(OSError), _alone(path):
        pairs = _read(path)
        of_pair = kept([sample, *pairs.pop(pair, [])])
        pairs = dict([(pair, of_pair), *pairs.items()][:PAIRS])
        write_whole(path, json.dumps({"pairs": msgspec.to_builtins(pairs)}).encode("utf-8"), 0o600)


def _path() -> Path | None:
    named = os.environ.get("WAYSTAGE_RATES", "")
    if named == "none":
        return None
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "waystage" / "rates.json" if base.startswith("/") else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Raises BlockingIOError where another process writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(
        path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class _File(msgspec.Struct, frozen=True):
    pairs: dict[str, list[Sample]] = {}


def _read(path: Path) -> dict[str, list[Sample]]:
    try:
        return msgspec.json.decode(read_bounded(path, MOST_BYTES), type=_File).pairs
    except (OSError, ValueError, RecursionError):
        return {}  # missing or damaged: it is written anew
