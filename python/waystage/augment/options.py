"""The operations on images, and which images are this process's.

Arrives: choices.
Leaves: the same, checked; files in processing order.
Must not know: where new images go.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from waystage._native import check_operation
from waystage.catalog.files import TreeFiles, columns_for_reading, files_of
from waystage.native_options.datasets import AugmentationOptions
from waystage.ranks import Rank
from waystage.task import Progress

MAX_PIXELS = 1 << 26
"""A photograph has 2^24 to 2^25 pixels; an image with many more is more likely to be a decompression bomb."""


class AugmentOptionError(ValueError):
    """An invalid option; the message names it and the remedy."""


class Streamed(NamedTuple):
    """One new image: the path of its source, the number of the copy, and pixels or a file's bytes."""

    path: bytes
    copy: int
    image: NDArray[np.uint8] | bytes


@dataclass(frozen=True)
class AugmentOptions:
    """Options. `operations` have the command line's syntax: see docs/how-to/augment.md. `max_pixels` is per image."""

    operations: tuple[str, ...] = ()
    seed: int = 0
    copies: int = 1
    encoding: Literal["same", "png", "jpeg"] = "same"
    quality: int = 90
    exclude: tuple[str, ...] = ()
    one_file_system: bool = False
    threads: int | None = None
    bytes_per_s: int = 0
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        for operation in self.operations:
            try:
                check_operation(operation)
            except ValueError as error:
                raise AugmentOptionError(str(error)) from None
        if not 0 <= self.seed < 1 << 64:
            raise AugmentOptionError(f"seed {self.seed} is not a number from 0 to 2^64 - 1")
        if self.copies < 1 or not 1 <= self.quality <= 100 or self.max_pixels < 1:
            raise AugmentOptionError("copies and pixels are counted from 1, and a quality is from 1 to 100")

    def thread_count(self) -> int:
        """Two for each core: one decodes while another waits for its disk."""
        return self.threads or 2 * len(os.sched_getaffinity(0))

    def native(
        self, *, target: str, path: Path | None = None, overwrite: bool = False, first_copy: int = 0
    ) -> AugmentationOptions:
        """The same options for the data plane, and where new images go."""
        return AugmentationOptions(
            operations=self.operations,
            seed=self.seed,
            encoding=self.encoding,
            quality=self.quality,
            max_pixels=self.max_pixels,
            first_copy=first_copy,
            copies=self.copies,
            threads=self.thread_count(),
            bytes_per_s=self.bytes_per_s,
            target=target,
            path=path,
            overwrite=overwrite,
        )


def images_of(
    source: Path,
    options: AugmentOptions,
    rank: Rank,
    progress: Progress | None = None,
) -> TreeFiles:
    """This rank's files of `source`, by path: the order of shards and streams. Raises BuildError, CatalogError."""
    files = files_of(
        source,
        options.exclude,
        one_file_system=options.one_file_system,
        progress=progress,
        part=(rank.number, rank.of) if rank.of > 1 else None,
    )
    return TreeFiles(files.root, files.table.sort_by("path"), files.excluded, files.errors, files.catalog)


def native_columns(files: TreeFiles) -> tuple[NDArray[Any], ...]:
    """Path offsets, paths, sizes, mtimes, ctimes and inodes."""
    return columns_for_reading(files.table)[:6]
