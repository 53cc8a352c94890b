"""New images for training, one after the other.

Arrives: images, operations, an epoch.
Leaves: an iterator that reads and decodes ahead in threads.
Must not know: what trains.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from waystage._native import Augmentation
from waystage.augment.options import AugmentOptions, Streamed, images_of, native_columns
from waystage.catalog.files import TreeFiles
from waystage.flows import FlowDescription, reported, storage
from waystage.ranks import Rank


def stream(
    source: str | os.PathLike[str],
    options: AugmentOptions,
    *,
    epoch: int = 0,
    shuffle: bool = False,
    rank: Rank | None = None,
    deliver: Literal["pixels", "files"] = "pixels",
    errors: list[tuple[bytes, str]] | None = None,
) -> Iterator[Streamed]:
    """New images of one epoch: arrays of height, width, channels, or files' bytes.

    The random parameters of an image depend on seed, path and copy; an epoch has the copies from `epoch * copies`
    on. The order is that of paths, or with `shuffle` a permutation by seed and epoch. Broken images are skipped,
    and appended to `errors` at the end. Memory does not grow with the number of images; closing the iterator ends
    its threads.
    """
    files = images_of(Path(source), options, rank or Rank())
    if shuffle:
        order = np.random.default_rng([options.seed, epoch]).permutation(files.table.num_rows)
        table = files.table.take(pa.array(order))
        files = TreeFiles(files.root, table, files.excluded, files.errors, files.catalog)
    native = options.native(target=deliver, first_copy=epoch * options.copies)
    # Closing the iterator ends the block, and with it the threads.
    with (
        Augmentation(files.root, native_columns(files), native) as running,
        reported(running, FlowDescription("io", "augment", source=storage(files.root))),
    ):
        while (made := running.next()) is not None:
            yield Streamed(made[0], made[1], made[-1])
        _, broken = running.finish()
    if errors is not None:
        errors += [*files.errors, *broken]
