"""The bare operations that benchmarks are held against do what they stand for."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from copying_trees import make_everything
from harness import bench_module, wait_until

BENCH = Path(__file__).parents[2] / "bench"
WARNINGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


def compiled(name: str, folder: Path, *flags: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("cc is missing")
    made = folder / name
    source = BENCH / f"{name}.c"
    subprocess.run(["cc", *WARNINGS, *flags, "-o", str(made), str(source)], check=True)
    return made


def entries_below(tree: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(tree))


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("attribute", [None, b"user.waystage"])
def test_the_bare_walk_finds_every_entry(tmp_path: Path, threads: int, attribute: bytes | None) -> None:
    (tmp_path / "tree").mkdir()
    make_everything(tmp_path / "tree")
    for number in range(3000):
        (tmp_path / "tree" / "a" / f"{number} more than one block of names holds").touch()
    library = compiled("_walk_floor", tmp_path, "-shared", "-fPIC")
    bare = ctypes.CDLL(str(library)).walk_floor
    bare.restype, bare.argtypes = ctypes.c_long, (ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
    assert bare(os.fsencode(tmp_path / "tree"), threads, attribute) == entries_below(tmp_path / "tree")
    assert bare(os.fsencode(tmp_path / "absent"), threads, attribute) == -1


@pytest.mark.parametrize("verify", [(), ("verify",)])
def test_the_bare_copy_has_the_bytes_and_times_of_every_file(tmp_path: Path, verify: tuple[str, ...]) -> None:
    copy = bench_module("copy")
    tree, made = tmp_path / "tree", tmp_path / "copy"
    copy.make_small(tree, 1200)
    (tree / "0000" / "large").write_bytes(os.urandom((33 << 20) + 5))
    bare = compiled("_copy_floor", tmp_path)
    subprocess.run([str(bare), str(tree), str(made), "3", *verify], check=True)
    files = [path.relative_to(tree) for path in tree.rglob("*") if path.is_file()]
    assert files and entries_below(made) == entries_below(tree)
    for file in files:
        assert (made / file).read_bytes() == (tree / file).read_bytes()
        assert (made / file).stat().st_mtime_ns == (tree / file).stat().st_mtime_ns


@pytest.mark.parametrize(("request_bytes", "in_flight"), [(100_000, 3), (1 << 20, 128)])
def test_the_bare_storage_gets_every_byte_of_the_subarray(
    tmp_path: Path, request_bytes: int, in_flight: int
) -> None:
    programs, size = bench_module("_io_programs"), bench_module("collective").array_bytes(100_000)
    assert size == 8 * 4**4 * 576
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    (tmp_path / "collective_peers").mkdir()
    bare = compiled("collective_peers/floor", tmp_path)
    words = [str(word) for word in (bare, size, request_bytes, in_flight, file)]
    printed = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    assert printed["bytes"] == size and printed["write_s"] > 0
    assert programs.wrong_bytes(file, printed) == 0


def test_the_bare_relay_carries_both_directions_to_their_ends(tmp_path: Path) -> None:
    relay = compiled("_relay", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words = [str(relay), str(port), "127.0.0.1", str(server.getsockname()[1])]
        with subprocess.Popen(words) as running:
            try:
                made: list[socket.socket] = []
                wait_until(lambda: connects(port, made), running)
                far, _ = server.accept()
                with made[0] as near, far:
                    near.sendall(b"there")
                    near.shutdown(socket.SHUT_WR)
                    assert received(far) == b"there"
                    far.sendall(b"back" * 100_000)
                    far.shutdown(socket.SHUT_WR)
                    assert received(near) == b"back" * 100_000
            finally:
                running.terminate()


def test_the_bare_record_changes_nothing_for_the_program(tmp_path: Path) -> None:
    library = compiled("_agent_floor", tmp_path, "-shared", "-fPIC")
    for more in ({}, {"AGENT_FLOOR_STAT": "1"}):
        environment = os.environ | {"LD_PRELOAD": str(library)} | more
        words = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i > f$i; cat f$i; done"]
        ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == list("123456789") and ran.stderr == ""


def connects(port: int, made: list[socket.socket]) -> bool:
    try:
        made.append(socket.create_connection(("127.0.0.1", port)))
    except ConnectionRefusedError:
        return False
    return True


def received(connection: socket.socket) -> bytes:
    found = bytearray()
    while more := connection.recv(1 << 16):
        found += more
    return bytes(found)
