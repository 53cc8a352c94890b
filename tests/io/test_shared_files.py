"""Shared files through a real aggregator process: what ranks in Python see, also when the process is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coupling_support import TOKEN
from harness import command
from io_ranks import Rank, ranks
from waystage import io


class Process:
    """`waystage aggregator`, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self._folder / "ready"
        ready.unlink(missing_ok=True)
        options = ("--socket", str(self._folder / "node"), "--listen", "127.0.0.1:0", "--name", "node")
        self._running = subprocess.Popen(
            command("aggregator", *options, "--ready-file", str(ready)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    folder = tmp_path / "socket"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("WAYSTAGE_IO_SOCKET", str(folder / "node"))
    monkeypatch.setenv("WAYSTAGE_IO_TOKEN", TOKEN)
    monkeypatch.setenv("WAYSTAGE_IO_LEASE_S", "60")
    found = Process(folder)
    found.start()
    yield found
    found.kill()


def test_ranks_write_and_read_their_parts_of_an_array_together(process: Process, tmp_path: Path) -> None:
    whole = np.arange(12 * 16, dtype="<f8").reshape(12, 16)

    def run(comm: Rank) -> bool:
        start = 4 * comm.rank
        view = io.Datatype.bytes(8).subarray((12, 16), (12, 4), (0, start))
        with io.open_shared(tmp_path / "out", "w+", comm=comm, timeout_s=60) as file:
            file.set_view(0, 8, view)
            assert file.put_all(whole[:, start : start + 4]) == 12 * 4 * 8
            file.sync()
            found = np.zeros((12, 8))
            assert file.get_all(found[:, ::2]) == 12 * 4 * 8
            return bool((found[:, ::2] == whole[:, start : start + 4]).all() and (found[:, 1::2] == 0).all())

    assert all(ranks(4, run))
    assert (np.fromfile(tmp_path / "out").reshape(12, 16) == whole).all()


def test_a_rank_alone_writes_by_its_view_and_by_a_list_of_extents(process: Process, tmp_path: Path) -> None:
    with io.open_shared(tmp_path / "out", "w+", timeout_s=60) as file:
        file.set_view(2, 1, io.Datatype.bytes(1).hvector(3, 2, 4).resized(0, 12))
        assert file.put(b"abcdefgh", 0) == 8
        assert (tmp_path / "out").read_bytes() == b"\0\0ab\0\0cd\0\0ef\0\0gh"
        assert file.put(b"XYZ", extents=[(5, 1), (0, 2)]) == 3
        assert (tmp_path / "out").read_bytes() == b"YZab\0Xcd\0\0ef\0\0gh"
        found = bytearray(6)
        assert file.get(found, 1) == 6 and bytes(found) == b"bcdefg"
        assert file.get(found, extents=[(14, 6)]) == 2 and bytes(found[:2]) == b"gh"
        with pytest.raises(io.IoError, match="the extents have 2 bytes, the data 3"):
            file.put(b"XYZ", extents=[(5, 2)])


def test_errors_come_back_at_every_rank(process: Process, tmp_path: Path) -> None:
    def missing(comm: Rank) -> int | None:
        with pytest.raises(io.IoError) as raised:
            io.open_shared(tmp_path / "absent", "r", comm=comm, timeout_s=60)
        return raised.value.errno

    assert ranks(2, missing) == [2, 2]
    (tmp_path / "given").write_bytes(b"12345678")

    def wrong(comm: Rank) -> bytes:
        with io.open_shared(tmp_path / "given", "r", comm=comm, timeout_s=60) as file:
            with pytest.raises(io.IoError, match="for reading only"):
                file.put_all(b"x")
            # One rank's mistake is every rank's error, and no rank waits for ever.
            with pytest.raises(io.IoError, match="must not be negative"):
                file.get_all(bytearray(4), -1 if comm.rank else 0)
            found = bytearray(4)
            file.get_all(found, 4 * comm.rank)
            return bytes(found)

    assert ranks(2, wrong) == [b"1234", b"5678"]


def test_a_killed_process_is_waited_for_and_nothing_is_lost(process: Process, tmp_path: Path) -> None:
    rounds = 30

    def run(comm: Rank) -> None:
        with io.open_shared(tmp_path / "out", "w", comm=comm, timeout_s=60) as file:
            for number in range(rounds):
                if comm.rank == 0 and number in (5, 15):
                    # The other ranks may be anywhere between two operations.
                    process.kill()
                    process.start()
                block = np.full(1000, 100 * comm.rank + number, "<i4")
                file.put_all(block, 4000 * (comm.size * number + comm.rank))

    ranks(3, run)
    found = np.fromfile(tmp_path / "out", "<i4").reshape(rounds, 3, 1000)
    expected = np.arange(rounds)[:, None, None] + 100 * np.arange(3)[None, :, None]
    assert (found == expected).all()


def test_without_a_process_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTAGE_IO_SOCKET", os.fspath(tmp_path / "none"))
    monkeypatch.setenv("WAYSTAGE_IO_TOKEN", TOKEN)
    with pytest.raises(io.Lost, match=r"no aggregator process answers at .*none"):
        io.open_shared(tmp_path / "out", "w", timeout_s=0.05)
    monkeypatch.delenv("WAYSTAGE_IO_SOCKET")
    with pytest.raises(io.IoError, match="waystage mpi --io"):
        io.open_shared(tmp_path / "out", "w", timeout_s=0.05)
