"""How much faster PyTorch's DataLoader delivers small files with Waystage's data set than with ImageFolder.

100,000 files of 4 KiB in 100 directories, which are the classes. Every contestant is a DataLoader whose batches of 256
come in shuffled order as one tensor of bytes and one of class numbers; none decodes, since that is the same work on
both sides. The consumer checks that each file came once, whole, with its class.

`imagefolder` is torchvision's `ImageFolder`, whose `loader` opens and reads the file, with one worker a core, the most
that PyTorch suggests; `imagefolder 8` has eight workers. `waystage` is `waystage.loader.torch.WaystageDataset` of the
tree's catalog without workers, since it reads in threads of the data plane, and with `batch`, as its how-to has it for
small files; `waystage, file by file` is the same without, whose batches PyTorch makes.

`cold_x_imagefolder` is how many times as fast as `imagefolder` it is on files that are not in the page cache (the
kernel's caches are dropped, as root): the ratio of medians. `warm_x_imagefolder` is the same on files that are, and
`x_imagefolder` the lesser of the two. The time to set up a DataLoader does not count, on neither side. Peers: the ratio
to `imagefolder 8`; `decoded_x_imagefolder`, where both decode small JPEG files by the same function in one worker a
core; and a plain loop without PyTorch.
"""

from __future__ import annotations

import importlib.util
import io
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from waystage.bench import BenchError, BenchOptions, Figures, drop_caches, take_turns
from waystage.catalog import BuildOptions, Catalog
from waystage.machine import SHORT_OF_CPU_IDLE_PCT

FILES, FILES_QUICK = 100_000, 4_000
IMAGES, IMAGES_QUICK = 10_000, 500
CLASSES = 100
BYTES = 4096
PIXELS = 48
BATCH = 256
MANY_WORKERS = 8
TURNS = 3
SEED = 11
TAKES_S = 270, 40

Batches = Callable[[int], Any]
"""Begins an epoch of this number; gives batches (bytes or pixels, classes)."""


def run(options: BenchOptions) -> dict[str, Any]:
    missing = [name for name in ("torch", "torchvision") if importlib.util.find_spec(name) is None]
    if missing:
        return {
            "figures": {},
            "details": {
                "skipped": f"{' and '.join(missing)} not installed: run scripts/torch, as make test-all does"
            },
        }
    files, images = (FILES_QUICK, IMAGES_QUICK) if options.quick else (FILES, IMAGES)
    given = os.environ.get("WAYSTAGE_BENCH_TREE")
    with tempfile.TemporaryDirectory(prefix="waystage-python-loader-", dir=given) as name:
        folder = Path(name)
        options.progress(f"making {files:,} files and {images:,} images", 0.0)
        numbered, pictures = folder / "numbered", folder / "pictures"
        _make_numbered(numbered, files)
        _make_pictures(pictures, images)
        for tree in (numbered, pictures):
            Catalog.build(tree, tree.with_suffix(".catalog"), BuildOptions())
        whole, every = partial(_check_numbers, files), partial(_check_pictures, images)
        prime = partial(_loop, numbered, files, 0)
        ours, single = partial(_batched, numbered), partial(_waystage, numbered, _bytes, 0)
        theirs = partial(_imagefolder, numbered, _bytes, _cores())
        contestants: dict[tuple[str, str], Any] = {
            ("warm", "waystage"): partial(_epoch, prime, ours, whole),
            ("warm", "waystage, file by file"): partial(_epoch, prime, single, whole),
            ("warm", "imagefolder"): partial(_epoch, prime, theirs, whole),
            ("warm", "loop"): partial(_loop, numbered, files),
            ("decoded", "waystage"): partial(
                _epoch, _nothing, partial(_waystage, pictures, _pixels, _cores()), every
            ),
            ("decoded", "imagefolder"): partial(
                _epoch, _nothing, partial(_imagefolder, pictures, _pixels, _cores()), every
            ),
        }
        if os.geteuid() == 0:
            many = partial(_imagefolder, numbered, _bytes, MANY_WORKERS)
            contestants |= {
                ("cold", "waystage"): partial(_epoch, drop_caches, ours, whole),
                ("cold", "imagefolder"): partial(_epoch, drop_caches, theirs, whole),
                ("cold", "imagefolder 8"): partial(_epoch, drop_caches, many, whole),
            }
        turns = take_turns(
            options.part("reading", 0.1, 1.0),
            contestants,
            turns=TURNS,
            quick=1,
            invalid=_short_of_cpu,
        )

    def times(case: str, other: str = "imagefolder") -> float:
        return round(turns.ratio((case, other), (case, "waystage"), "seconds"), 2)

    cold = ("cold", "waystage") in contestants
    found = ({"cold_x_imagefolder": times("cold")} if cold else {}) | {"warm_x_imagefolder": times("warm")}
    return {
        "figures": {"x_imagefolder": min(found.values()), **found},
        "peers": {"decoded_x_imagefolder": times("decoded")}
        | ({"x_imagefolder_8": times("cold", "imagefolder 8")} if cold else {})
        | {
            f"{case}_{reader.replace(',', '').replace(' ', '_')}_s": round(
                turns.median((case, reader), "seconds"), 3
            )
            for case, reader in contestants
        },
        "details": turns.details() | {"files": files, "images": images, "workers": _cores()},
    }


def _waystage(tree: Path, to_tensor: Callable[[Any], Any], workers: int, turn: int) -> Any:
    from torch.utils.data import DataLoader

    from waystage.loader.torch import WaystageDataset

    number = {name: index for index, name in enumerate(sorted(os.listdir(tree)))}

    def sample(path: str, data: memoryview) -> Any:
        return to_tensor(data), number[path.partition("/")[0]]

    dataset = WaystageDataset(tree.with_suffix(".catalog"), seed=SEED, transform=sample)
    dataset.set_epoch(turn + 1)
    return DataLoader(dataset, batch_size=BATCH, num_workers=workers)


def _batched(tree: Path, turn: int) -> Any:
    import torch
    from torch.utils.data import DataLoader

    from waystage.loader.torch import WaystageDataset, stacked

    number = {name: index for index, name in enumerate(sorted(os.listdir(tree)))}

    def batch(paths: list[str], buffers: list[memoryview]) -> Any:
        return stacked(buffers), torch.tensor([number[path.partition("/")[0]] for path in paths])

    dataset = WaystageDataset(tree.with_suffix(".catalog"), seed=SEED, batch=BATCH, transform=batch)
    dataset.set_epoch(turn + 1)
    return DataLoader(dataset, batch_size=None)


def _imagefolder(tree: Path, to_tensor: Callable[[Any], Any], workers: int, turn: int) -> Any:
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    def load(path: str) -> Any:
        with open(path, "rb", buffering=0) as file:
            return to_tensor(bytearray(file.read()))

    order = torch.Generator().manual_seed(SEED + turn)
    dataset = ImageFolder(str(tree), loader=load)
    return DataLoader(dataset, batch_size=BATCH, num_workers=workers, shuffle=True, generator=order)


def _bytes(data: Any) -> Any:
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def _pixels(data: Any) -> Any:
    import torch
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))


def _epoch(
    before: Callable[[], object], batches: Batches, check: Callable[[list[Any]], None], turn: int
) -> Figures:
    # ImageFolder walks its tree once, as the catalog is built once, for all epochs.
    begun = batches(turn)
    before()
    began = time.perf_counter()
    kept = [(data[:, :8].clone(), classes, data.shape) for data, classes in begun]
    seconds = time.perf_counter() - began
    check(kept)
    return {"seconds": seconds, "cold": before is drop_caches}


def _short_of_cpu(figures: Figures) -> str | None:
    """Files that are read from the page cache take all processors: only those of the disk leave some idle."""
    if figures.get("cold") and figures["idle_pct"] < SHORT_OF_CPU_IDLE_PCT:
        return f"the machine was {figures['idle_pct']} % idle, less than {SHORT_OF_CPU_IDLE_PCT} %"
    return None


def _check_numbers(files: int, kept: list[Any]) -> None:
    """Each file came once, whole, with its class."""
    found = np.zeros(files, dtype=np.int64)
    for head, classes, shape in kept:
        numbers = np.ascontiguousarray(head.numpy()).view("<u8").reshape(-1)
        if shape[1] != BYTES or (numbers % CLASSES != classes.numpy()).any():
            raise BenchError("a file was not whole, or of another class")
        np.add.at(found, numbers, 1)
    if (found != 1).any():
        raise BenchError(f"{int((found != 1).sum())} of {files} files did not come exactly once")


def _check_pictures(images: int, kept: list[Any]) -> None:
    if sum(shape[0] for _, _, shape in kept) != images:
        raise BenchError("an image did not come exactly once")


def _loop(tree: Path, files: int, turn: int) -> Figures:
    began = time.perf_counter()
    total = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            with open(f"{folder}/{name}", "rb", buffering=0) as file:
                total += len(file.read())
    if total != files * BYTES:
        raise BenchError(f"{total} of {files * BYTES} bytes were there")
    return {"seconds": time.perf_counter() - began}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _nothing() -> None:
    """The files stay where the last reading left them."""


def _folder(tree: Path, number: int) -> Path:
    return tree / f"c{number % CLASSES:02d}"


def _make_numbered(tree: Path, files: int) -> None:
    """Files that are named as images, for ImageFolder takes no others, and hold their number and noise."""
    noise = os.urandom(BYTES)
    for number in range(CLASSES):
        _folder(tree, number).mkdir(parents=True)
    for number in range(files):
        content = number.to_bytes(8, "little") + noise[8:]
        (_folder(tree, number) / f"f{number:06d}.jpg").write_bytes(content)


def _make_pictures(tree: Path, images: int) -> None:
    from PIL import Image

    noise = np.random.default_rng(SEED)
    coarse = noise.integers(0, 256, (CLASSES, PIXELS // 8, PIXELS // 8, 3), dtype=np.uint8)
    for number in range(CLASSES):
        _folder(tree, number).mkdir(parents=True)
    encoded = []
    for pixels in coarse:
        held = io.BytesIO()
        Image.fromarray(pixels).resize((PIXELS, PIXELS)).save(held, "JPEG", quality=90)
        encoded.append(held.getvalue())
    for number in range(images):
        (_folder(tree, number) / f"i{number:06d}.jpg").write_bytes(encoded[number % CLASSES])
