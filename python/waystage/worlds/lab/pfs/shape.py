"""The shape of an emulated file system: what its file may hold, and what is wrong with it.

Arrives: the path of a YAML file, or the name of a shipped one.
Leaves: `Shape`; the same as the native part takes it; the sizes of made-up files.
Must not know: mounts, processes.
"""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from waystage.experiment import documents
from waystage.experiment.problems import ExperimentError, Key, Problem
from waystage.experiment.resource_checks import slowdown_curve
from waystage.experiment.schema import Name, Part, Sizes

STRIPE_UNIT = 64 << 10
"""Lustre's smallest unit of a stripe."""

MOST_FILES = 100_000_000
_AMOUNTS = frozenset(
    {"read_per_s", "write_per_s", "stripe_size", "to", "read_ahead", "size", "median", "largest"}
)
_KEYS = "name, description, targets, metadata, layout, client, tree"

Positive = Annotated[float, Meta(gt=0, le=1e15)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e6)]
Seconds = Annotated[float, Meta(ge=0, le=1e8)]
Bytes = Annotated[int, Meta(ge=1, le=2**50)]
Target = Annotated[int, Meta(ge=0, le=1023)]


class Targets(Part, frozen=True, kw_only=True):
    """Storage targets, all alike but for `slower`: (target, factor)."""

    count: Annotated[int, Meta(ge=1, le=1024)]
    read_per_s: Bytes
    write_per_s: Bytes
    latency_ms: Milliseconds = 0.0
    slots: Annotated[int, Meta(ge=1, le=65536)] = 512
    slowdown: Annotated[tuple[tuple[float, float], ...], Meta(min_length=1)] = ((1.0, 1.0),)
    slower: tuple[tuple[Target, Positive], ...] = ()


class Latencies(Part, frozen=True, kw_only=True):
    """How long an answer takes besides its turn, by message."""

    lookup: Milliseconds
    open: Milliseconds
    close: Milliseconds
    layout: Milliseconds
    readdir: Milliseconds
    change: Milliseconds
    glimpse: Milliseconds = 0.0


class Metadata(Part, frozen=True, kw_only=True):
    """Metadata servers; a directory belongs to one of them."""

    servers: Annotated[int, Meta(ge=1, le=1024)] = 1
    messages_per_s: Positive
    latency_ms: Latencies
    entries_per_message: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000


class LayoutPart(Part, frozen=True, kw_only=True):
    """The bytes of a file up to `to` (none: the rest) are striped over this many targets, `stripe_size` at a time."""

    stripes: Annotated[int, Meta(ge=1, le=1024)] | Literal["all"] = 1
    stripe_size: Bytes = 1 << 20
    to: Bytes | None = None
    pool: Annotated[str, Meta(min_length=1, max_length=15)] | None = None


class Layout(Part, frozen=True, kw_only=True):
    """How new files are striped, and how targets are dealt to them."""

    parts: Annotated[tuple[LayoutPart, ...], Meta(min_length=1, max_length=64)] = (LayoutPart(),)
    pools: dict[str, Annotated[tuple[Target, ...], Meta(min_length=1)]] = {}
    dealing: Literal["round-robin", "random"] = "round-robin"


class Client(Part, frozen=True, kw_only=True):
    """What the client caches: pages, names and attributes with their lifetimes, and the size of its read-ahead."""

    pages: Literal["kept", "direct"] = "kept"
    read_ahead: Annotated[int, Meta(ge=4096, le=1 << 30)] = 1 << 20
    names_s: Seconds = 3900.0
    attributes_s: Seconds = 3900.0


class Tree(Part, frozen=True, kw_only=True):
    """Made-up files: one size, a distribution, or a file of lines `BYTES COUNT`, drawn from in proportion."""

    files: Annotated[int, Meta(ge=1, le=MOST_FILES)]
    files_per_directory: Annotated[int, Meta(ge=1, le=10_000_000)] = 1000
    size: Bytes | None = None
    sizes: Sizes | None = None
    sizes_file: str | None = None


class Shape(Part, frozen=True, kw_only=True):
    """A file system; `dilation` seconds of real time are one emulated second."""

    name: Name = "pfs"
    description: str = ""
    targets: Targets
    metadata: Metadata
    layout: Layout = Layout()
    client: Client = Client()
    tree: Tree | None = None
    dilation: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1


class MountConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a mount's process serves on `point`: a folder, or the files that the shape generates.

    `shared` is whether every user may use it, not root alone.
    """

    point: str
    shape: Shape
    folder: str | None = None
    shared: bool = False


def shipped() -> tuple[str, ...]:
    """Names of the shapes that come with Waystage."""
    folder = files("waystage") / "data" / "pfs"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load(source: str | Path) -> Shape:
    """A shipped shape by name, or a file. Raises ExperimentError with file, line and key."""
    if isinstance(source, str) and source in shipped():
        path = Path(str(files("waystage") / "data" / "pfs" / f"{source}.yaml"))
    else:
        path = Path(source)
        if not path.exists():
            names = ", ".join(shipped())
            raise ExperimentError(f"{path}: there is no such shape file; shipped shapes: {names}")
    document = documents.read(path, "a shape", _KEYS)
    try:
        shape = documents.convert(documents.plain(document, documents.amounts(_AMOUNTS)), Shape)
        check(shape)
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None
    tree = shape.tree
    if tree is not None and tree.sizes_file is not None:
        tree = msgspec.structs.replace(tree, sizes_file=str((path.parent / tree.sizes_file).resolve()))
        shape = msgspec.structs.replace(shape, tree=tree)
    return shape


def check(shape: Shape) -> None:
    """What msgspec cannot know. Raises Problem."""
    slowdown_curve(("targets", "slowdown"), shape.targets.slowdown)
    for i, (target, _) in enumerate(shape.targets.slower):
        _there(("targets", "slower", i), target, shape)
    for name, members in shape.layout.pools.items():
        if not 1 <= len(name.encode()) <= 15:
            raise Problem(("layout", "pools", name), "a pool's name has 1 to 15 bytes")
        for i, target in enumerate(members):
            _there(("layout", "pools", name, i), target, shape)
    _check_parts(shape)
    tree = shape.tree
    if tree is not None:
        if [tree.size, tree.sizes, tree.sizes_file].count(None) != 2:
            raise Problem(("tree",), "give one of size, sizes and sizes_file")
        if tree.sizes is not None and tree.sizes.largest < tree.sizes.median:
            raise Problem(("tree", "sizes", "largest"), "is smaller than the median: give a larger one")


def _there(key: Key, target: int, shape: Shape) -> None:
    if target >= shape.targets.count:
        raise Problem(key, f"there is no target {target}: they are 0 to {shape.targets.count - 1}")


def _check_parts(shape: Shape) -> None:
    parts, key = shape.layout.parts, ("layout", "parts")
    if parts[-1].to is not None:
        raise Problem(
            (*key, len(parts) - 1, "to"), "the largest files end later: let the last part have no `to`"
        )
    previous = 0
    for i, part in enumerate(parts):
        if part.stripe_size % STRIPE_UNIT or part.stripe_size >= 1 << 32:
            raise Problem((*key, i, "stripe_size"), "use a multiple of 64 KiB below 4 GiB, as Lustre does")
        if part.pool is not None and part.pool not in shape.layout.pools:
            raise Problem((*key, i, "pool"), f"there is no pool {part.pool}: add it to layout.pools")
        if i == len(parts) - 1:
            break
        if part.to is None or part.to <= previous or part.to % part.stripe_size:
            raise Problem(
                (*key, i),
                "each part but the last needs a `to` that rises and is a multiple of its stripe size",
            )
        previous = part.to


def sizes(shape: Shape) -> NDArray[np.uint64]:
    """The size of every made-up file, from the seed. Raises ExperimentError where a file of sizes is none."""
    tree = shape.tree
    if tree is None:
        raise ExperimentError(f"shape {shape.name} makes up no files: give `tree`, or serve a folder")
    if tree.size is not None:
        return np.full(tree.files, tree.size, dtype=np.uint64)
    random = np.random.default_rng(shape.seed)
    if tree.sizes is not None:
        drawn = random.lognormal(math.log(tree.sizes.median), tree.sizes.sigma, tree.files)
        return np.clip(drawn, 1, tree.sizes.largest).astype(np.uint64)
    values, weights = _size_file(Path(str(tree.sizes_file)))
    return random.choice(values, size=tree.files, p=weights / weights.sum()).astype(np.uint64)


def _size_file(path: Path) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    rows: list[tuple[int, float]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path}: cannot be read as a file of sizes: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            amount, count = int(words[0]), float(words[1]) if len(words) > 1 else 1.0
        except ValueError:
            amount, count = -1, 0.0
        if len(words) > 2 or not 0 <= amount <= 2**50 or not 0 < count < math.inf:
            raise ExperimentError(f"{path}:{number}: a line is `BYTES COUNT`, such as `1000000 25`")
        rows.append((amount, count))
    if not rows:
        raise ExperimentError(f"{path}: has no sizes: give lines `BYTES COUNT`")
    return np.array([r[0] for r in rows], dtype=np.uint64), np.array([r[1] for r in rows])


def native(shape: Shape, folder: Path | None, shared: bool = False) -> dict[str, Any]:
    """The shape as `_native.EmulatedFileSystem` takes it."""
    latency = shape.metadata.latency_ms
    messages = (latency.lookup, latency.open, latency.close, latency.layout, latency.readdir, latency.change)
    parts = shape.layout.parts
    return {
        "dilation": shape.dilation,
        "seed": shape.seed,
        "targets": shape.targets.count,
        "read_rate_bps": float(shape.targets.read_per_s),
        "write_rate_bps": float(shape.targets.write_per_s),
        "latency_ns": shape.targets.latency_ms * 1e6,
        "slots": shape.targets.slots,
        "slowdown": list(shape.targets.slowdown),
        "slower": list(shape.targets.slower),
        "servers": shape.metadata.servers,
        "rate_ops": shape.metadata.messages_per_s,
        "message_ns": [round(ms * 1e6) for ms in messages],
        "glimpse_ns": round(latency.glimpse * 1e6),
        "entries_per_message": shape.metadata.entries_per_message,
        "components": [
            (p.to, p.stripe_size, None if p.stripes == "all" else p.stripes, p.pool) for p in parts
        ],
        "pools": [(name, list(members)) for name, members in shape.layout.pools.items()],
        "random": shape.layout.dealing == "random",
        "names_s": shape.client.names_s,
        "attributes_s": shape.client.attributes_s,
        "direct": shape.client.pages == "direct",
        "folder": folder,
        "shared": shared,
        "files_per_directory": shape.tree.files_per_directory if shape.tree is not None else 1,
    }
