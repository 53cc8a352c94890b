"""Files for PyTorch: an `IterableDataset` whose workers and ranks share the work.

Arrives: arguments of a `Loader`; this worker's number, from PyTorch.
Leaves: what the loader delivers, each file to one worker of one rank.
Must not know: models, devices.

PyTorch is imported when a dataset is created: nothing else in Waystage needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from waystage.loader.errors import LoaderError
from waystage.loader.files import FileSet, file_set
from waystage.loader.loader import Loader

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    raise LoaderError(
        "PyTorch is not installed: pip install torch, or iterate over waystage.loader.Loader itself"
    ) from None


class WaystageDataset(IterableDataset):  # type: ignore[misc]
    """Files of a catalog or tree as `(path, buffer)`, or the results of `transform(path, buffer)`.

    Options are those of `Loader`; `rank` and `world` default to those of `torch.distributed` where it is initialised.
    Each worker of a `DataLoader` is a process with its own share: with `w` workers, worker i of rank r delivers as rank
    `r + world * i` of `world * w`. Each worker has its own state, as `torchdata.StatefulDataLoader` saves it.

    With `batch`, items are lists of that many files, `(paths, buffers)`, the last of them shorter, or the results of
    `transform(paths, buffers)`, for a `DataLoader` with `batch_size=None`: small files take longer to pass one by one
    through Python than to read. `stacked` makes a tensor of such a list.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        transform: Callable[..., Any] | None = None,
        rank: int | None = None,
        world: int | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if batch is not None and batch < 1:
            raise LoaderError("a batch has at least one file: give batch=256, for instance")
        self._batch = batch
        self._source = source
        self._transform = transform
        self._rank, self._world = rank, world
        self._options = options
        self._files: FileSet | None = None
        self._loader: Loader | None = None
        self._state: dict[str, Any] | None = None
        # In memory that workers share, so that set_epoch reaches those that persist.
        self._epoch = torch.tensor(int(options.pop("epoch", 0)), dtype=torch.int64).share_memory_()
        # Invalid options are reported here and not in a worker.
        self._made()

    def set_epoch(self, epoch: int) -> None:
        """The order of the next iteration; call it before each epoch, as of a DistributedSampler.

        It reaches the workers of a DataLoader too, also persistent ones: those that are running read it when their next
        iteration begins.
        """
        self._epoch.fill_(epoch)
        self._state = None

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader = self._made()
        state, self._state = self._state, None
        # A worker that persists holds the state of an epoch that set_epoch has ended in the process that trains.
        if state is not None and state.get("epoch") == int(self._epoch):
            loader.load_state_dict(state)
        items = iter(loader)
        if self._batch is not None:
            items = _Batches(items, 2 if loader.deliver == "files" else 3, self._batch)
        transform = self._transform
        if transform is not None:
            return (transform(*item) for item in items)
        if get_worker_info() is not None:
            # What a worker sends to the process that trains is pickled, which a view of memory cannot be.
            sent: Callable[[Any], Any] = bytes if self._batch is None else _all_bytes
            return ((*names, sent(data)) for *names, data in items)
        return items

    def __len__(self) -> int:
        """How many files this rank delivers, over all its workers; batches of one process, where there are some."""
        rank, world = self._place()
        return -(-len(self._with(rank, world)) // (self._batch or 1))

    def state_dict(self) -> dict[str, Any]:
        """Of this worker."""
        loader = self._loader if self._loader is not None else self._made()
        return self._state or loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For the next iteration of this worker."""
        self._state = state
        self._epoch.fill_(int(state.get("epoch", self._epoch)))

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked opens the catalog itself: what the data plane holds cannot be sent.
        return self.__dict__ | {"_files": None, "_loader": None}

    def _made(self) -> Loader:
        rank, world = self._place()
        worker = get_worker_info()
        if worker is not None:
            # So numbered, the workers of a rank together have what the rank would have without workers.
            rank, world = rank + world * worker.id, world * worker.num_workers
        return self._with(rank, world)

    def _with(self, rank: int, world: int) -> Loader:
        if self._files is None:
            known = {name: self._options[name] for name in ("mode", "tree") if name in self._options}
            if known.get("tree") is not None:
                known["tree"] = Path(known["tree"])
            self._files = file_set(Path(self._source), **known)
        options = {name: value for name, value in self._options.items() if name not in ("mode", "tree")}
        return Loader(self._files, epoch=int(self._epoch), rank=rank, world=world, **options)

    def _place(self) -> tuple[int, int]:
        if self._rank is not None or self._world is not None:
            return self._rank or 0, self._world or 1
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1


class _Batches:
    """Items of a loader in lists of `size`, column by column. A file that raises takes nothing of its batch along."""

    def __init__(self, items: Any, columns: int, size: int) -> None:
        self._items, self._size = items, size
        self._columns = columns
        self._held = self._empty()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> tuple[list[Any], ...]:
        held = self._held
        self._items.extend(held, self._size)
        if not held[0]:
            raise StopIteration
        self._held = self._empty()
        return held

    def _empty(self) -> tuple[list[Any], ...]:
        return tuple([] for _ in range(self._columns))


def stacked(buffers: Sequence[Any]) -> Any:
    """Buffers of one size as a tensor of bytes, shape (buffers, bytes of each). Raises ValueError where sizes differ."""
    size = len(buffers[0])
    if any(len(data) != size for data in buffers):
        raise ValueError("buffers of different sizes make no tensor: pad or decode them in `transform`")
    if not size:
        return torch.empty((len(buffers), 0), dtype=torch.uint8)  # frombuffer takes no buffer without bytes
    return torch.frombuffer(bytearray().join(buffers), dtype=torch.uint8).view(len(buffers), size)


def _all_bytes(buffers: list[Any]) -> list[bytes]:
    return [bytes(data) for data in buffers]
