"""The PyTorch adapter. Where PyTorch is not installed, a stand-in for the two names of it that the adapter takes is used."""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness import WAIT_S
from waystage.loader import FileNotLoaded, LoaderError

Contents = dict[str, bytes]


class SharedNumber:
    """What the adapter takes of a tensor without dimensions in shared memory."""

    def __init__(self, value: int, dtype: type) -> None:
        self._memory = mmap.mmap(-1, 8)
        self.fill_(value)

    def share_memory_(self) -> SharedNumber:
        return self

    def fill_(self, value: int) -> None:
        self._memory[:] = value.to_bytes(8, "little")

    def __int__(self) -> int:
        return int.from_bytes(self._memory[:], "little")

    def __reduce__(self) -> tuple[type[SharedNumber], tuple[int, type]]:
        return SharedNumber, (int(self), int)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`waystage.loader.torch`, and `as_worker(id, count)`, which makes this process a worker of a DataLoader."""
    worker: list[SimpleNamespace | None] = [None]
    data = ModuleType("torch.utils.data")
    data.IterableDataset = object  # type: ignore[attr-defined]
    data.get_worker_info = lambda: worker[0]  # type: ignore[attr-defined]
    distributed = ModuleType("torch.distributed")
    distributed.is_available = lambda: False  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.distributed = distributed  # type: ignore[attr-defined]
    torch.int64 = int  # type: ignore[attr-defined]
    torch.tensor = SharedNumber  # type: ignore[attr-defined]
    for name, module in (
        ("torch", torch),
        ("torch.utils", ModuleType("torch.utils")),
        ("torch.utils.data", data),
        ("torch.distributed", distributed),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "waystage.loader.torch", raising=False)
    made = importlib.import_module("waystage.loader.torch")

    def as_worker(number: int | None, count: int = 1) -> None:
        worker[0] = None if number is None else SimpleNamespace(id=number, num_workers=count)

    yield SimpleNamespace(dataset=made.WaystageDataset, as_worker=as_worker, distributed=distributed)
    sys.modules.pop("waystage.loader.torch", None)


def test_workers_and_ranks_together_deliver_each_file_once(
    adapter: Any, catalog: Path, contents: Contents
) -> None:
    found: list[str] = []
    for rank in range(2):
        dataset = adapter.dataset(catalog, rank=rank, world=2, seed=7)
        alone = [path for path, _ in dataset]
        shared: list[str] = []
        for number in range(3):
            adapter.as_worker(number, 3)
            shared += [path for path, _ in dataset]
        adapter.as_worker(None)
        assert sorted(shared) == sorted(alone)
        assert len(dataset) == len(alone)
        found += shared
    assert sorted(found) == sorted(contents)


def test_rank_and_world_come_from_torch_distributed(adapter: Any, catalog: Path, contents: Contents) -> None:
    adapter.distributed.is_available = lambda: True
    adapter.distributed.is_initialized = lambda: True
    adapter.distributed.get_rank = lambda: 4
    adapter.distributed.get_world_size = lambda: 5
    assert len(list(adapter.dataset(catalog))) == len(adapter.dataset(catalog)) == (len(contents)) // 5


def test_a_transform_is_applied_and_epochs_differ(adapter: Any, catalog: Path, contents: Contents) -> None:
    dataset = adapter.dataset(catalog, transform=lambda path, data: (path, len(data)))
    first = list(dataset)
    assert dict(first) == {path: len(data) for path, data in contents.items()}
    dataset.set_epoch(1)
    second = list(dataset)
    assert sorted(first) == sorted(second) and first != second


def test_batches_hold_every_file_once_and_the_last_is_shorter(
    adapter: Any, catalog: Path, contents: Contents
) -> None:
    dataset = adapter.dataset(catalog, batch=4)
    batches = list(dataset)
    assert [len(paths) for paths, _ in batches[:-1]] == [4] * (len(contents) // 4)
    assert len(batches) == len(dataset) == -(-len(contents) // 4)
    found = {
        path: bytes(data) for paths, buffers in batches for path, data in zip(paths, buffers, strict=True)
    }
    assert found == contents
    sizes = adapter.dataset(catalog, batch=3, transform=lambda paths, buffers: sum(map(len, buffers)))
    assert sum(sizes) == sum(map(len, contents.values()))
    adapter.as_worker(0, 2)
    assert {type(data) for _, buffers in dataset for data in buffers} == {bytes}, "views cannot be sent"
    with pytest.raises(LoaderError, match="at least one file"):
        adapter.dataset(catalog, batch=0)


def test_a_file_that_is_gone_takes_no_other_of_its_batch_along(
    adapter: Any, catalog: Path, contents: Contents, tree: Path
) -> None:
    gone = sorted(contents)[len(contents) // 2]
    (tree / gone).unlink()
    batches = iter(adapter.dataset(catalog, batch=len(contents)))
    with pytest.raises(FileNotLoaded):
        next(batches)
    paths, _ = next(batches)
    assert sorted([*paths, gone]) == sorted(contents)


def test_a_state_between_batches_goes_on_with_the_next(
    adapter: Any, catalog: Path, contents: Contents
) -> None:
    dataset = adapter.dataset(catalog, batch=2)
    first, _ = next(iter(dataset))
    again = adapter.dataset(catalog, batch=2)
    again.load_state_dict(dataset.state_dict())
    rest = [path for paths, _ in again for path in paths]
    assert sorted([*first, *rest]) == sorted(contents)


def test_a_worker_goes_on_where_its_state_says(adapter: Any, catalog: Path) -> None:
    adapter.as_worker(1, 2)
    whole = [path for path, _ in adapter.dataset(catalog)]
    dataset = adapter.dataset(catalog)
    iterator = iter(dataset)
    before = [next(iterator)[0] for _ in range(5)]
    resumed = adapter.dataset(catalog)
    resumed.load_state_dict(dataset.state_dict())
    assert before + [path for path, _ in resumed] == whole


def test_a_worker_that_was_sent_opens_the_catalog_itself(adapter: Any, catalog: Path) -> None:
    dataset = adapter.dataset(catalog, seed=2)
    sent = pickle.loads(pickle.dumps(dataset))
    assert [path for path, _ in sent] == [path for path, _ in dataset]


def test_a_forked_worker_reads(adapter: Any, catalog: Path, contents: Contents) -> None:
    """A DataLoader forks its workers after the dataset was made, and perhaps iterated, in the parent."""
    dataset = adapter.dataset(catalog)
    next(iter(dataset))
    here, there = multiprocessing.Pipe()

    def work() -> None:
        adapter.as_worker(0, 2)
        there.send(sorted(path for path, _ in dataset))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    there.close()
    try:
        assert here.poll(WAIT_S), "the worker gave nothing"
        adapter.as_worker(1, 2)
        assert sorted([*here.recv(), *(path for path, _ in dataset)]) == sorted(contents)
    finally:
        process.kill()
        process.join()


def test_a_new_epoch_reaches_a_worker_that_is_running(adapter: Any, catalog: Path) -> None:
    dataset = adapter.dataset(catalog, seed=3)
    here, there = multiprocessing.Pipe()

    def work() -> None:
        adapter.as_worker(0, 1)
        for _ in iter(there.recv, "stop"):
            there.send([path for path, _ in dataset])

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    try:
        found = []
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            here.send("iterate")
            assert here.poll(WAIT_S), "the worker gave nothing"
            found.append(here.recv())
        assert found[0] != found[1] and sorted(found[0]) == sorted(found[1])
        assert found[1] == [path for path, _ in dataset]
    finally:
        process.kill()
        process.join()


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    monkeypatch.delitem(sys.modules, "waystage.loader.torch", raising=False)
    with pytest.raises(LoaderError, match="pip install torch"):
        importlib.import_module("waystage.loader.torch")


def test_a_real_data_loader_with_workers_delivers_everything_once(catalog: Path, contents: Contents) -> None:
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed: pip install torch")
    from waystage.loader.torch import WaystageDataset

    loaded = data.DataLoader(WaystageDataset(catalog), batch_size=None, num_workers=2)
    assert dict(loaded) == contents
    dataset = WaystageDataset(catalog, transform=lambda path, data: len(data))
    batches = list(data.DataLoader(dataset, batch_size=4, num_workers=2))
    assert sum(int(batch.sum()) for batch in batches) == sum(map(len, contents.values()))


def test_batches_of_files_of_one_size_become_a_tensor(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from waystage.loader.torch import WaystageDataset, stacked

    for number in range(10):
        (tmp_path / f"{number}").write_bytes(bytes([number]) * 64)
    dataset = WaystageDataset(
        tmp_path, batch=4, transform=lambda paths, buffers: (stacked(buffers), list(map(int, paths)))
    )
    found = []
    for data, numbers in torch.utils.data.DataLoader(dataset, batch_size=None):
        assert data.dtype == torch.uint8 and data.shape == (len(numbers), 64)
        assert (data == torch.tensor(numbers).view(-1, 1)).all()
        data += 1  # it may be written to
        found += numbers
    assert sorted(found) == list(range(10))
    with pytest.raises(ValueError, match="different sizes"):
        stacked([b"a", b"bc"])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_new_epoch_reaches_persistent_workers_of_a_real_data_loader(catalog: Path, start: str) -> None:
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed: pip install torch")
    from waystage.loader.torch import WaystageDataset

    dataset = WaystageDataset(catalog, seed=3)
    loader = data.DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=start
    )
    epochs = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        epochs.append([path for path, _ in loader])
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
