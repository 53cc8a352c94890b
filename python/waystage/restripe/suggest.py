"""Which layout suits files of which sizes, by the contention model of a storage system.

Arrives: sizes of files; the number of targets, the rate and latency of one, and the slowdown g(x) of x readers.
Leaves: size classes, each with a layout, the predicted times of the alternatives, and the reason.
Must not know: trees, catalogs, how a layout is set.

Each candidate is one number of stripes. The loader's own scheduler reads a sample of the class in simulated time, with
the number of loaders that SwiftLoad's algorithm 1 gives for g(x). The candidate is the smallest number of stripes
whose time is within 3 % of the best: more stripes cost more requests, and spread each file over more targets that may
be slow. A second time is that of one process that reads one file with a loader per stripe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from waystage._native import LoadFiles, choose_loaders, simulate_load
from waystage.native_options.loads import SimulatedLoadOptions
from waystage.native_options.restripes import SizeClass, StripePart
from waystage.restripe.errors import LayoutTextError
from waystage.restripe.layouts import layout_text, size_text

BOUNDS = (1 << 20, 16 << 20, 256 << 20, 4 << 30, 64 << 30)
"""Largest sizes of the classes; the last class is open."""

SAMPLE = 512
"""Files of a class that are simulated, evenly over its sizes."""

NEAR = 1.03
"""Times within this factor of the best count as equal."""

PIECE_BYTES = 64 << 20
MEMORY_BYTES = 1 << 40


@dataclass(frozen=True)
class StorageModel:
    """A storage system as the model sees it: equal targets."""

    targets: int
    read_bytes_per_s: float
    """Of one request that has a target for itself."""
    latency_s: float
    slowdown: Sequence[tuple[float, float]]
    """g(x): (requests in service, how many times longer each takes), from 1 on."""
    origin: str
    """Where the numbers are from, for the reader of a suggestion."""


@dataclass(frozen=True)
class Suggestion:
    """One class of sizes, its layout, and why."""

    size_class: SizeClass
    files: int
    bytes: int
    seconds: dict[int, float]
    """Stripes -> predicted seconds to read the sample of the class once."""
    alone_s: dict[int, float]
    """Stripes -> predicted seconds for one process to read one file of median size."""
    reason: str


def suggest(sizes: NDArray[np.int64], model: StorageModel, stripe_size: int = 1 << 20) -> list[Suggestion]:
    """A layout for each class that has files. `sizes` has shape (files,), bytes. Raises LayoutTextError without any."""
    sizes = sizes[sizes > 0]
    if not len(sizes):
        raise LayoutTextError("no file of the tree has a byte: there is nothing to choose a layout for")
    lower = 0
    found: list[Suggestion] = []
    for upper in (*BOUNDS, None):
        inside = sizes[(sizes > lower) & (sizes <= upper if upper is not None else True)]
        lower = upper or lower
        if len(inside):
            found.append(_of_class(np.sort(inside), upper, model, stripe_size))
    # The last class also takes files that are larger by the time it is used.
    found[-1] = replace(found[-1], size_class=SizeClass(parts=found[-1].size_class.parts))
    return found


def _of_class(
    sizes: NDArray[np.int64], upper: int | None, model: StorageModel, stripe_size: int
) -> Suggestion:
    best_loaders, rates = _service(model)
    picked = sizes[np.linspace(0, len(sizes) - 1, min(SAMPLE, len(sizes))).astype(int)]
    median = int(np.median(sizes))
    counts = [c for c in _candidates(model.targets) if c == 1 or int(sizes[-1]) > stripe_size * (c // 2)]
    seconds = {c: _together(picked, c, model, stripe_size, rates, best_loaders) for c in counts}
    alone = {c: _alone(median, c, model, stripe_size) for c in counts}
    least = min(seconds.values())
    chosen = min(c for c in counts if seconds[c] <= least * NEAR)
    part = StripePart(stripes=None if chosen == model.targets > 1 else chosen, stripe_size=stripe_size)
    most = counts[-1]
    if chosen == 1:
        others = [c for c in counts if c > 1]
        reason = (
            "fits one stripe, so that more stripes would stay empty"
            if not others
            else f"with {len(sizes):,} files on {model.targets} targets one stripe each keeps all targets busy; "
            f"{most} stripes would take {seconds[most] / seconds[1]:.2f} times as long"
        )
    else:
        reason = (
            f"{len(sizes):,} files with one stripe each leave targets unevenly full, which takes "
            f"{seconds[1] / seconds[chosen]:.2f} times as long as {chosen} stripes; more gain less than {NEAR - 1:.0%}"
        )
    reason += (
        f"; one process reads a file of {size_text(_round(median))} in {alone[chosen]:.3g} s "
        f"({alone[1]:.3g} s with 1 stripe, {alone[most]:.3g} s with {most}); {best_loaders} loaders per target"
    )
    size_class = SizeClass(most_bytes=upper, parts=(part,))
    return Suggestion(size_class, len(sizes), int(sizes.sum()), seconds, alone, reason)


def _round(size: int) -> int:
    """About the same size, with few digits."""
    return size if size < 1 << 10 else size // (unit := 1 << (10 * ((size.bit_length() - 1) // 10))) * unit


def _candidates(targets: int) -> list[int]:
    counts = [c for c in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if c < targets]
    return [*counts, targets]


def _service(model: StorageModel) -> tuple[int, NDArray[np.float64]]:
    """Algorithm 1's loaders for a target, and bytes a second of 1, 2, ... loaders together."""
    most = int(min(max(x for x, _ in model.slowdown), 512))
    counts = np.arange(1, most + 1)
    curve = np.interp(counts, [x for x, _ in model.slowdown], [g for _, g in model.slowdown])
    best, _ = choose_loaders([(int(x), float(g)) for x, g in zip(counts, curve, strict=True)])
    return best, model.read_bytes_per_s * counts / curve


def _alone(size: int, stripes: int, model: StorageModel, stripe_size: int) -> float:
    used = min(stripes, -(-size // stripe_size))
    return model.latency_s + size / used / model.read_bytes_per_s


def _together(
    sizes: NDArray[np.int64],
    stripes: int,
    model: StorageModel,
    stripe_size: int,
    rates: NDArray[np.float64],
    loaders: int,
) -> float:
    """Seconds in which all loaders read every file once, files dealt to targets in turn."""
    files = _files(sizes, stripes, model.targets, stripe_size)
    used = len(files.targets)
    outcome = simulate_load(
        files,
        [(rates, model.latency_s)] * used,
        SimulatedLoadOptions(
            whole_files=False,
            loaders=loaders * used,
            most_readers=loaders,
            in_order=False,
            steal=False,
            memory_bytes=MEMORY_BYTES,
            piece_bytes=PIECE_BYTES,
        ),
    )
    return float(outcome["makespan_s"])


def _files(sizes: NDArray[np.int64], stripes: int, targets: int, stripe_size: int) -> LoadFiles:
    """Files with objects on targets in turn, each object with its share of the stripes."""
    order = np.random.default_rng(1).permutation(len(sizes))
    shares: list[list[int]] = []
    on: list[int] = []
    first = 0
    for size in sizes[order].tolist():
        full, rest = divmod(size, stripe_size)
        each = [
            (full // stripes + (index < full % stripes)) * stripe_size
            + (rest if index == full % stripes else 0)
            for index in range(stripes)
        ]
        held = [share for share in each if share]
        shares.append(held)
        on += [(first + index) % targets for index in range(len(held))]
        first += stripes
    lengths = np.array([share for held in shares for share in held], np.int64)
    ends = np.cumsum([0, *(len(held) for held in shares)]).astype(np.int32)
    offsets = np.concatenate([np.cumsum([0, *held[:-1]]) for held in shares]).astype(np.int64)
    count = len(sizes)
    names = b"".join(b"%06d" % index for index in range(count))
    nothing = np.zeros(count, np.int64)
    files = LoadFiles(Path("/modelled"))
    files.extend(
        {
            "directories": (np.zeros(2, np.int32), np.zeros(0, np.uint8)),
            "directory": np.zeros(count, np.int32),
            "kind": np.zeros(count, np.int8),
            "names": (np.arange(count + 1, dtype=np.int32) * 6, np.frombuffer(names, np.uint8)),
            "size": sizes[order].astype(np.int64),
            "mtime": nothing,
            "ctime": nothing,
            "inode": nothing.astype(np.uint64),
            "layout": np.full(count, -1, np.int8),
            "generation": np.zeros(count, np.uint32),
            "objects": ends,
            "object_target": np.array(on, np.uint32),
            "object_offset": offsets,
            "object_length": lengths,
        }
    )
    return files


def described(suggestion: Suggestion) -> dict[str, object]:
    """A suggestion for --json."""
    most = suggestion.size_class.most_bytes
    return {
        "most_bytes": most,
        "layout": layout_text(suggestion.size_class.parts),
        "files": suggestion.files,
        "bytes": suggestion.bytes,
        "predicted_s": {str(c): round(s, 6) for c, s in suggestion.seconds.items()},
        "one_file_s": {str(c): round(s, 6) for c, s in suggestion.alone_s.items()},
        "reason": suggestion.reason,
    }
