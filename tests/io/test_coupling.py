"""Two applications exchange arrays by name: what ranks in C and Python see of each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from coupling_support import INCLUDE, Node, compiled, finished, node
from waystage import io

SOURCE = INCLUDE.parent / "tests" / "couple.c"

WRITER = """
import sys, numpy as np
from waystage import io
rank, size, versions = map(int, sys.argv[1:4])
whole = np.arange(6 * 8 * 10, dtype="<i4").reshape(6, 8, 10)
with io.couple("flow", "write", rank=rank, size=size, depth=1) as flow:
    rows = slice(6 * rank // size, 6 * (rank + 1) // size)
    for version in range(versions):
        flow.put("u", version, (whole + version)[rows], starts=(rows.start, 0, 0), shape=whole.shape)
        flow.commit(version)
"""

READER = """
import sys, numpy as np
from waystage import io
rank, size = map(int, sys.argv[1:3])
whole = np.arange(6 * 8 * 10, dtype="<i4").reshape(6, 8, 10)
with io.couple("flow", "read", rank=rank, size=size) as flow:
    for version in flow.versions():
        assert flow.inquire("u", version) == (np.dtype("<i4"), (6, 8, 10))
        start, end = 10 * rank // size, 10 * (rank + 1) // size
        part = flow.get("u", version, starts=(0, 0, start), counts=(6, 8, end - start))
        assert (part == (whole + version)[:, :, start:end]).all()
        print(version)
"""


@pytest.mark.parametrize("host", ["", "elsewhere"], ids=["shared memory", "TCP"])
def test_three_writers_reach_two_readers(tmp_path: Path, host: str) -> None:
    with node(tmp_path, host=host) as found:
        readers = [found.python(READER, str(rank), "2") for rank in range(2)]
        writers = [found.python(WRITER, str(rank), "3", "4") for rank in range(3)]
        for writer in writers:
            finished(writer)
        for reader in readers:
            assert finished(reader).split() == ["0", "1", "2", "3"]


def test_a_program_in_c_reaches_one_in_python_and_back(one: Node, tmp_path: Path) -> None:
    program = compiled(SOURCE, tmp_path / "couple")
    reader = one.python(READER, "0", "1")
    finished(one.command(str(program), "write"))
    assert finished(reader).split() == ["0", "1", "2"]
    reader = one.command(str(program), "read")
    finished(one.python(WRITER, "0", "1", "3"))
    assert finished(reader).split() == ["0", "1", "2"]


def test_arrays_with_strides_are_put_and_got_without_a_copy_of_the_callers(one: Node) -> None:
    array = np.arange(4 * 6 * 5, dtype=">f4").reshape(4, 6, 5)
    odd = array[::-1, ::2, 1:4]
    with io.couple("flow", "write") as writer, io.couple("flow", "read") as reader:
        writer.put("odd", 7, odd)
        writer.commit(7)
        out = np.zeros((4, 5, 6), ">f4").transpose(0, 2, 1)[:, ::2, :3]
        assert reader.get("odd", 7, out=out) is out
        assert (out == odd).all()
        assert (reader.get("odd", 7, starts=(1, 0, 2), counts=(2, 3, 1)) == odd[1:3, :, 2:]).all()
        reader.commit(7)


def test_a_killed_writer_is_an_error_for_its_readers_and_what_appeared_stays(one: Node) -> None:
    program = WRITER.replace("flow.commit(version)", "flow.commit(version); print(version, flush=True)")
    writer = one.python(program.replace("depth=1", "depth=9") + "\n    input()", "0", "1", "2")
    with io.couple("flow", "read") as reader:
        assert writer.stdout is not None
        assert [writer.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        writer.kill()
        writer.communicate()
        assert reader.get("u", 1).shape == (6, 8, 10)
        with pytest.raises(io.Lost, match="writer 0 has died"):
            reader.get("u", 2)


def test_a_writer_that_fails_is_seen_to_die_and_not_to_close(one: Node) -> None:
    writer = one.python(WRITER + "\n        if version == 1: raise SystemExit(3)", "0", "1", "3")
    with io.couple("flow", "read") as reader:
        assert reader.get("u", 0).shape == (6, 8, 10)
        reader.commit(0)
        assert reader.next(0) == 1
        with pytest.raises(io.Lost, match="writer 0 has died"):
            reader.next(1)
    assert writer.wait(60) == 3


def test_a_killed_reader_is_an_error_for_a_writer_that_waits(one: Node) -> None:
    reader = one.python(READER.replace("print(version)", "print(version, flush=True); input()"), "0", "1")
    writer = io.couple("flow", "write", depth=1)
    writer.put("u", 0, np.arange(480, dtype="<i4").reshape(6, 8, 10))
    writer.commit(0)
    assert reader.stdout is not None and reader.stdout.readline() == "0\n"
    reader.kill()
    reader.communicate()
    with pytest.raises(io.Lost, match="reader 0 has died"):
        writer.put("u", 1, np.zeros((6, 8, 10), "<i4"))


def test_a_writer_waits_at_the_depth_and_says_so(one: Node) -> None:
    with io.couple("flow", "write", depth=1, timeout_s=3) as writer:
        writer.put("x", 0, np.zeros(3))
        writer.commit(0)
        with pytest.raises(io.TimedOut, match="flow: the other ranks have not come within 3 s"):
            writer.put("x", 1, np.zeros(3))
        with io.couple("flow", "read") as reader:
            reader.commit(0)
        writer.put("x", 1, np.zeros(3))


def test_mistakes_are_named(one: Node) -> None:
    with pytest.raises(io.IoError, match="no name: use letters"):
        io.couple("../flow", "read")
    with pytest.raises(io.TimedOut, match="no writer has opened other"):
        io.couple("other", "read", timeout_s=0.05)
    with io.couple("flow", "write") as writer, io.couple("flow", "read") as reader:
        with pytest.raises(io.IoError, match="outside"):
            writer.put("x", 0, np.zeros(3), starts=(2,), shape=(4,))
        with pytest.raises(io.IoError, match="Python objects"):
            writer.put("x", 0, np.array([None]))
        writer.put("x", 0, np.zeros(3), starts=(1,), shape=(9,))
        writer.commit(0)
        with pytest.raises(io.IoError, match=r"no writer has put x\[0:1\]"):
            reader.get("x", 0, counts=(4,))
        with pytest.raises(io.IoError, match="no variable y"):
            reader.get("y", 0)
        with pytest.raises(io.IoError, match="a reader cannot put"):
            reader.put("x", 1, np.zeros(3))
        with pytest.raises(io.IoError, match="needs an array of"):
            reader.get("x", 0, starts=(1,), counts=(3,), out=np.zeros(3, "f4"))
        reader.commit(0)


def test_a_version_is_stored_once_it_is_complete(one: Node, tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    first = io.couple("flow", "write", rank=0, size=2, store=folder)
    second = io.couple("flow", "write", rank=1, size=2, store=folder)
    array = np.arange(20, dtype="<f8").reshape(4, 5)
    first.put("x", 3, array[:2], shape=array.shape)
    first.commit(3)
    assert not (folder / "flow.x.3.npy").exists()
    second.put("x", 3, array[2:], starts=(2, 0), shape=array.shape)
    second.commit(3)
    assert (np.load(folder / "flow.x.3.npy") == array).all()
    assert [path.name for path in folder.iterdir()] == ["flow.x.3.npy"]


def test_a_child_cannot_use_what_its_parent_opened(one: Node) -> None:
    program = """
import os
from waystage import io
with io.couple("flow", "write") as flow:
    if os.fork() == 0:
        try:
            flow.commit(0)
        except io.IoError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    assert "forked" in finished(one.python(program))


def test_the_library_exports_its_interface_only() -> None:
    from waystage.io.library import path

    command = ["nm", "-D", "--defined-only", str(path())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert names and all(name.startswith("ws_io_") for name in names)
    header = (INCLUDE / "waystage_io.h").read_text()
    assert [name for name in names if f" {name}(" not in header.replace("*", " ")] == []
