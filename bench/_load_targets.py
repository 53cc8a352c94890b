"""Emulated storage targets and files on them, for benchmarks of the loader's decisions.

A target is its rate as a function of its readers, relative to one reader alone. Three shapes: `saturating`, where
readers gain until the target is full; `steep`, after SwiftLoad's Fig. 4 and its experiment file, where beyond some
number each read slows down faster than readers come; `falling`, like KAUST's dcp, whose best number was between 16
and 32 and where twice as many took nearly twice as long.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage._native import LoadFiles

MOST = 64
ALONE_BYTES_PER_S = 150e6
"""One reader on one target: a disk array's order of magnitude; ratios do not depend on it."""

Service = tuple[NDArray[np.float64], float]

_X = np.arange(1, MOST + 1, dtype=np.float64)

CURVES: dict[str, NDArray[np.float64]] = {
    # Towards 12 readers' worth; no loss beyond.
    "saturating": ALONE_BYTES_PER_S * 12 * _X / (_X + 11),
    # g(x) = 1 + 0.02 x + (x / 24)^3.
    "steep": ALONE_BYTES_PER_S * _X / (1 + 0.02 * (_X - 1) + (_X / 24) ** 3),
    # 889, 226 and 401 s with 4, 16 and 32: about 1, 3.9 and 2.2 relative to four readers.
    "falling": ALONE_BYTES_PER_S
    * np.interp(_X, [1, 2, 4, 8, 16, 20, 24, 32, 48, 64], [1, 1.7, 2.6, 5.2, 10.1, 10.4, 9.2, 5.8, 3.4, 2.4]),
}


def service(rates: NDArray[np.float64], latency_s: float = 0.0005) -> Service:
    """A target that serves at these rates."""
    return np.ascontiguousarray(rates), latency_s


def files_on_targets(
    count: int, targets: int, file_bytes: int, stripes: int = 1, seed: int = 0, spread: float = 0.3
) -> LoadFiles:
    """Files of about `file_bytes` bytes (log-normal), in stripes of equal length on neighbouring targets, allotted in
    turn.
    """
    rng = np.random.default_rng(seed)
    unit = np.maximum(1, rng.lognormal(np.log(file_bytes / stripes), spread, count)).astype(np.int64)
    names = [b"f%07d" % n for n in range(count)]
    first = np.arange(count) * stripes
    turn = np.tile(np.arange(stripes), count)
    files = LoadFiles(Path("/emulated"))
    nothing = np.zeros(count, np.int64)
    files.extend(
        {
            "directories": (np.zeros(2, np.int32), np.zeros(0, np.uint8)),
            "directory": np.zeros(count, np.int32),
            "kind": np.zeros(count, np.int8),
            "names": (np.arange(count + 1, dtype=np.int32) * 8, np.frombuffer(b"".join(names), np.uint8)),
            "size": unit * stripes,
            "mtime": nothing,
            "ctime": nothing,
            "inode": nothing.astype(np.uint64),
            "layout": np.full(count, -1, np.int8),
            "generation": np.zeros(count, np.uint32),
            "objects": np.arange(count + 1, dtype=np.int32) * stripes,
            "object_target": ((np.repeat(first, stripes) + turn) % targets).astype(np.uint32),
            "object_offset": np.repeat(unit, stripes) * turn,
            "object_length": np.repeat(unit, stripes),
        }
    )
    return files
