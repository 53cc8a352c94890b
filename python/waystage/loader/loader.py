"""The loader: an iterator over the bytes of files, in an order by seed and epoch, resumable.

Arrives: a tree or a catalog, which share of it, how to read it.
Leaves: (path, buffer) or (path, offset, buffer); a state; counts.
Must not know: what is done with the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from waystage._native import LoadedItems, Loading, LoadRefused
from waystage.flows import FlowDescription, FlowEnd, reported
from waystage.loader.errors import LoaderError
from waystage.loader.files import FileSet, Mode, file_set
from waystage.loader.profile import Profile
from waystage.native_options.loads import LoadingOptions
from waystage.task import Progress

STATE_VERSION = 1

MEMORY_BYTES = 256 << 20
"""Read but not yet delivered, at most: some seconds of a fast file system, little beside a training process."""

PIECE_BYTES = 4 << 20
"""Large enough for one target's full rate, small enough for many readers of a large file."""

NUMBERS = 2**64
"""The data plane uses 64-bit numbers."""

LOADERS = 96
"""Outstanding reads; more of them are faster on storage that answers late, however few cores there are. Of files in memory
no more are read at once than there are cores."""

TARGETS_TOLD = 1024
"""Storage targets named to the flow agent, the most that it takes."""


class Loader:
    """Reads ahead in threads and delivers buffers, which belong to the receiver.

    An iteration is one epoch; a further one repeats it, unless `load_state_dict` sets where to resume.
    A loader starts its threads when it is iterated, so that it may be made before a process forks. Use it as a context
    manager, or `close` it, to end its threads before the epoch is over.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | FileSet,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        deliver: Literal["files", "objects"] = "files",
        shuffle: bool = True,
        order: Literal["epoch", "arrival"] = "epoch",
        uneven: Literal["keep", "drop", "repeat"] = "keep",
        mode: Mode | None = None,
        tree: str | os.PathLike[str] | None = None,
        profile: Profile | str | os.PathLike[str] | None = None,
        loaders: int | None = None,
        binding: Literal["steal", "strict"] = "steal",
        memory_bytes: int = MEMORY_BYTES,
        piece_bytes: int = PIECE_BYTES,
        on_error: Literal["raise", "skip"] = "raise",
        resized: Literal["error", "deliver"] = "error",
        progress: Progress | None = None,
    ) -> None:
        """`source` is a catalog, or a tree, which is then walked; docs/how-to/loader.md explains the choices.

        `seed` and `epoch`, 0 to 2**64 - 1, set the order, unless `shuffle` is False. `rank` of `world` processes delivers
        its share; `uneven` says whether the last files of a remainder are kept, dropped, or repeated by the others.
        `deliver` is whole files or pieces of objects of at most `piece_bytes`; `order` that of the epoch or of arrival.
        `mode` and `tree` say where files and layouts come from: a catalog, whose tree may have moved, or a walk with or
        without layouts. `loaders`, 1 to 4096, limits the threads, `profile` a file of `waystage profile-targets`;
        `binding` lets a thread leave its storage target, or not. `memory_bytes` bounds what is read and not delivered.
        `on_error` raises FileNotLoaded in the place of a file that cannot be read, or skips it; `resized` makes a changed
        size such an error, or delivers the present contents. `progress` receives a text and the share done of a walk.

        Raises LoaderError, CatalogError.
        """
        _one_of("deliver", deliver, ("files", "objects"))
        _one_of("order", order, ("epoch", "arrival"))
        _one_of("uneven", uneven, ("keep", "drop", "repeat"))
        _one_of("binding", binding, ("steal", "strict"))
        _one_of("on_error", on_error, ("raise", "skip"))
        _one_of("resized", resized, ("error", "deliver"))
        if mode is not None:
            _one_of("mode", mode, ("catalog", "object", "file"))
        if world < 1 or not 0 <= rank < world:
            raise LoaderError(f"rank {rank} of {world} processes: ranks are 0 to {world - 1}")
        for name, value in (("memory_bytes", memory_bytes), ("piece_bytes", piece_bytes)):
            if not 1 <= value < NUMBERS:
                raise LoaderError(f"{name} is {value}: give at least 1, and less than 2**64")
        if loaders is not None and not 1 <= loaders <= 4096:
            raise LoaderError(f"{loaders} loaders: give 1 to 4096")
        if not 0 <= seed < NUMBERS or not 0 <= epoch < NUMBERS:
            raise LoaderError("seed and epoch are numbers from 0 to 2**64 - 1")
        if not isinstance(source, FileSet):
            source = file_set(
                Path(source), mode, tree=Path(tree) if tree is not None else None, progress=progress
            )
        self.files = source
        self.seed, self.epoch, self.rank, self.world = seed, epoch, rank, world
        self.deliver, self.shuffle, self.order, self.uneven = deliver, shuffle, order, uneven
        self.binding, self.on_error, self.resized = binding, on_error, resized
        self.memory_bytes, self.piece_bytes = memory_bytes, piece_bytes
        if isinstance(profile, str | os.PathLike):
            profile = Profile.load(Path(profile))
        self.best_loaders = profile.best_loaders if profile is not None else None
        self.loaders = loaders or self._usual_loaders()
        self._loading: Loading | None = None
        self._epoch: _Epoch | None = None
        self._going_on: tuple[list[tuple[int, int]], list[tuple[int, list[int]]]] = ([], [])
        self._over = False

    @property
    def root(self) -> Path:
        """The root of all paths."""
        return self.files.root

    def __len__(self) -> int:
        """The number of files that this process delivers in an epoch; for objects it is unknown beforehand."""
        if self.deliver != "files":
            raise TypeError("a loader of objects has no length")
        count, world = len(self.files.files), self.world
        return {
            "keep": (count - self.rank + world - 1) // world,
            "drop": count // world,
            "repeat": -(-count // world),
        }[self.uneven]

    def __iter__(self) -> Iterator[Any]:
        """Start reading. An earlier iterator ends."""
        self.close()
        options = LoadingOptions(
            whole_files=self.deliver == "files",
            seed=self.seed,
            epoch=self.epoch,
            shuffle=self.shuffle,
            rank=self.rank,
            world=self.world,
            uneven=self.uneven,
            loaders=self.loaders,
            best_loaders=self.best_loaders,
            in_order=self.order == "epoch",
            memory_bytes=self.memory_bytes,
            piece_bytes=self.piece_bytes,
            steal=self.binding == "steal",
            raises=self.on_error == "raise",
            resized=self.resized == "deliver",
        )
        try:
            self._loading = Loading(self.files.files, options, self._going_on)
        except LoadRefused as error:
            raise LoaderError(str(error)) from None
        self._going_on = ([], [])
        self._epoch = _Epoch(self._loading, self._about())
        return self._epoch

    def _about(self) -> FlowDescription:
        """The loader as a flow: it reads from these storage targets."""
        names = [self.files.targets.get(number, str(number)) for number in self.files.files.targets]
        targets = tuple(names[:TARGETS_TOLD])
        total = sum(self.files.files.bytes_by_target()) // self.world
        return FlowDescription(
            "io",
            "load",
            source=FlowEnd(targets=targets),
            bytes=total,
            loaders=self.best_loaders,
            counts=lambda counts: (counts["bytes"], total),
        )

    def set_epoch(self, epoch: int) -> None:
        """Draw the next iteration's order for this epoch, from its beginning."""
        if not 0 <= epoch < NUMBERS:
            raise LoaderError("an epoch is a number from 0 to 2**64 - 1")
        self.close()
        self.epoch = epoch
        self._loading = None
        self._going_on = ([], [])

    def state_dict(self) -> dict[str, Any]:
        """What the iterator has delivered, to save as JSON or by pickle."""
        runs, parts = self._loading.delivered() if self._loading is not None else self._going_on
        return {
            "version": STATE_VERSION,
            **self._of_what(),
            "runs": [list(run) for run in runs],
            "parts": [[position, list(of)] for position, of in parts],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume there in the next iteration. Raises LoaderError where the state is of other files or another share."""
        try:
            if state["version"] != STATE_VERSION:
                raise LoaderError(
                    f"the state has version {state['version']!r}, and this Waystage reads {STATE_VERSION}"
                )
            epoch = int(state["epoch"])
            runs = [(int(first), int(end)) for first, end in state["runs"]]
            parts = [(int(position), [int(part) for part in of]) for position, of in state["parts"]]
            said = dict(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, LoaderError):
                raise
            raise LoaderError("the state is damaged, or of no loader: begin the epoch anew") from None
        most = len(self.files.files) if self.deliver == "files" else self.files.files.objects
        sound = all(0 <= first <= end <= most for first, end in runs) and all(
            0 <= position < most and all(0 <= part < 2**32 for part in of) for position, of in parts
        )
        if not sound or not 0 <= epoch < NUMBERS:
            raise LoaderError("the state is damaged: begin the epoch anew")
        for key, value in self._of_what().items():
            if key != "epoch" and said.get(key) != value:
                raise LoaderError(
                    f"the state is of another {WORDS[key]} ({said.get(key)!r}, and here it is {value!r}):"
                    " use what it was saved with, or begin the epoch anew"
                )
        self.close()
        self._loading = None
        self.epoch = epoch
        self._going_on = (runs, parts)

    def counts(self) -> dict[str, Any]:
        """Counts of the current or last iteration: units, bytes, failures, stale entries, and those of each target."""
        if self._loading is None:
            return {}
        targets = [
            {
                "target": self.files.targets.get(number, str(number)),
                "bytes": size,
                "pieces": pieces,
                "busy_s": busy_s,
                "reading_s": reading_s,
            }
            for number, size, pieces, busy_s, reading_s in self._loading.targets()
        ]
        return {**self._loading.progress(), "targets": targets}

    def failures(self) -> list[tuple[str, str, str]]:
        """(path, trouble, message) of files that were not delivered, the first thousand."""
        return [] if self._loading is None else self._loading.failures()

    def stale_paths(self) -> tuple[list[bytes], bool]:
        """Paths of stale entries, and whether the list is complete: the argument of `waystage.catalog.refresh`."""
        return ([], True) if self._loading is None else self._loading.stale_paths()

    def close(self) -> None:
        """End the threads. The state remains."""
        if self._loading is not None:
            self._loading.cancel()
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _of_what(self) -> dict[str, Any]:
        """What a state and its loader must have in common."""
        same = {
            "files": self.files.identity,
            "seed": self.seed,
            "epoch": self.epoch,
            "rank": self.rank,
            "world": self.world,
            "deliver": self.deliver,
            "shuffle": self.shuffle,
            "uneven": self.uneven,
        }
        if self.deliver == "objects":
            same["piece_bytes"] = self.piece_bytes
            if self.world > 1:
                same["loaders"] = [self.loaders, self.best_loaders]
        return same

    def _usual_loaders(self) -> int:
        if self.best_loaders is None:
            return LOADERS
        # Algorithm 1, shared by all processes.
        targets = max(1, len(self.files.files.targets))
        return max(1, min(LOADERS, -(-self.best_loaders * targets // self.world)))


class _Epoch(LoadedItems):
    """What one epoch delivers; a flow until the last buffer, `close`, or the end of all references."""

    def __new__(cls, loading: Loading, about: FlowDescription) -> Self:
        return super().__new__(cls, loading)

    def __init__(self, loading: Loading, about: FlowDescription) -> None:
        self._loading = loading
        self._flow = ExitStack()
        self._flow.enter_context(reported(loading, about))

    def extend(self, columns: Sequence[list[Any]], most: int) -> None:
        """Append what `next` gives, column by column, until there are `most` items or nothing is left."""
        self._loading.extend(columns, most)
        if len(columns[0]) < most:
            self._flow.close()

    def close(self) -> None:
        self._flow.close()

    def __del__(self) -> None:
        self._flow.close()


WORDS = {
    "files": "catalog or tree, or an older state of it",
    "seed": "seed",
    "rank": "rank",
    "world": "number of processes",
    "deliver": "way of delivering",
    "shuffle": "order",
    "uneven": "way with a remainder",
    "piece_bytes": "size of pieces",
    "loaders": "number of loaders",
}


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise LoaderError(f"{name} is {value!r}: give {', '.join(known[:-1])} or {known[-1]}")
