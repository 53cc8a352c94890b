"""Staging from Python: over loopback, and what its errors say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystage._native import FileServer, FileTransfer, TransferError

HERE = "127.0.0.1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "data").mkdir()
    (tmp_path / "jobs").mkdir()
    modules = [("data", False), ("jobs", True)]
    with FileServer(address=HERE, port=0, root=tmp_path, modules=modules) as server:
        yield server


def move(
    server: FileServer, way: str, source: bytes, directory: bytes, times: int | None = 1
) -> FileTransfer:
    steps = [([source], directory, times)]
    return FileTransfer(address=HERE, port=server.port, way=way, steps=steps)  # type: ignore[arg-type]


def test_files_go_both_ways_and_their_names_are_bytes(server: FileServer, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xffn\xe4me")
    body = os.urandom(700_001)
    (tmp_path / odd).write_bytes(body)
    put = move(server, "put", os.fsencode(tmp_path / odd), b"jobs")
    assert put.wait()
    moved, seconds = put.result()
    assert moved == len(body) and 0 < seconds < 30
    assert (tmp_path / "jobs" / odd).read_bytes() == body
    (tmp_path / odd).unlink()
    back = move(server, "get", b"jobs/" + os.fsencode(odd), os.fsencode(tmp_path), times=3)
    assert back.wait(30)
    assert back.result()[0] == back.progress()["bytes"] == 3 * len(body)
    assert (tmp_path / odd).read_bytes() == body


def test_errors_have_a_kind_and_name_what_they_are_about(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="data/absent: No such file") as caught:
        move(server, "get", b"data/absent", os.fsencode(tmp_path)).wait()
    assert caught.value.kind == "missing"
    with pytest.raises(TransferError, match="leads out with") as caught:
        move(server, "get", b"data/../../etc/passwd", os.fsencode(tmp_path))
    assert caught.value.kind == "refused"
    with pytest.raises(TransferError, match=f"{HERE}:{server.port}: .*in use") as caught:
        FileServer(address=HERE, port=server.port, root=tmp_path, modules=[])
    assert caught.value.kind == "port-in-use"
    with pytest.raises(TransferError, match="waystage-absent"):
        FileServer(address=HERE, port=0, root=tmp_path, modules=[], namespace="waystage-absent")
    with pytest.raises(TransferError, match="no-such-folder"):
        FileServer(address=HERE, port=0, root=tmp_path, modules=[("no-such-folder", False)])
    with pytest.raises(ValueError, match="storage"):
        FileServer(address="storage", port=0, root=tmp_path, modules=[])
    with pytest.raises(ValueError, match="sideways"):
        move(server, "sideways", b"data/x", os.fsencode(tmp_path))


def test_a_transfer_without_end_is_cancelled(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data/x").write_bytes(bytes(100_000))
    transfer = move(server, "get", b"data/x", os.fsencode(tmp_path), times=None)
    assert not transfer.wait(0.2)
    with pytest.raises(RuntimeError, match="has not ended"):
        transfer.result()
    transfer.cancel()
    with pytest.raises(TransferError, match="was stopped") as caught:
        transfer.wait()
    assert caught.value.kind == "cancelled"
    assert not server.wait(0)


def test_a_server_that_is_stopped_says_so(server: FileServer, tmp_path: Path) -> None:
    server.cancel()
    with pytest.raises(TransferError, match="was stopped"):
        server.wait()
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(TransferError, match="refused") as caught:
        move(server, "put", os.fsencode(tmp_path / "x"), b"jobs").wait()
    assert caught.value.kind == "unreachable"
