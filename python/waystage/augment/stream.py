"""New images to whoever trains, one after the other.

Arrives: images, what to do to them, an epoch.
Leaves: an iterator that reads and works ahead in threads of its own.
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

    What is drawn for an image hangs on seed, path and copy; each epoch has copies of its own, `epoch * copies` and on. The order is that of
    paths, or with `shuffle` one that seed and epoch decide. Broken images are left out, and appended to `errors` at the
    end. The memory that is used does not grow with the number of images; closing the iterator ends its threads.
    """
    files = images_of(Path(source), options, rank or Rank())
    if shuffle:
        order = np.random.default_rng([options.seed, epoch]).permutation(files.table.num_rows)
        table = files.table.take(pa.array(order))
        files = TreeFiles(files.root, table, files.excluded, files.errors, files.catalog)
    running = Augmentation(
        files.root, native_columns(files), target=deliver, **options.native(first_copy=epoch * options.copies)
    )
    # Whoever closes the iterator drops this, and with it its threads.
    while (made := running.next()) is not None:
        yield Streamed(made[0], made[1], made[-1])
    _, broken = running.finish()
    if errors is not None:
        errors += [*files.errors, *broken]
