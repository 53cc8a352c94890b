"""A version of a coupled name as a file object: what h5py and numpy write, their reader finds."""

from __future__ import annotations

import io as stdlib_io
from pathlib import Path

import numpy as np
import pytest

from coupling_support import Node, finished
from waystage import io

PYTHON, H5PY = "/usr/bin/python3", Path("/usr/lib/python3/dist-packages/h5py/_debian_h5py_serial")
SOURCES = Path(io.__file__).parents[2]

H5PY_WRITER = """
import numpy as np, h5py._debian_h5py_serial as h5py
from waystage import io
with io.couple("flow", "write") as flow:
    for step in range(3):
        with flow.open(step) as version, h5py.File(version, "w") as file:
            file["u"] = np.arange(100_000).reshape(100, 1000) + step
            file.create_dataset("chunked", data=np.full((50, 70), step), chunks=(7, 9), compression="gzip")
            file.attrs["step"] = step
"""

H5PY_READER = """
import numpy as np, h5py._debian_h5py_serial as h5py
from waystage import io
with io.couple("flow", "read") as flow:
    for step in flow.versions():
        with flow.open(step) as version, h5py.File(version, "r") as file:
            assert file.attrs["step"] == step
            assert (file["u"][()] == np.arange(100_000).reshape(100, 1000) + step).all()
            assert (file["chunked"][3:40:2, 60] == step).all()
        print(step)
"""


@pytest.mark.skipif(not H5PY.is_dir(), reason="h5py is missing: install python3-h5py")
def test_serial_h5py_couples_two_programs(one: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    reader = one.command(PYTHON, "-c", H5PY_READER)
    finished(one.command(PYTHON, "-c", H5PY_WRITER))
    assert finished(reader).split() == ["0", "1", "2"]


def test_arrays_that_numpy_saves_are_loaded_by_the_reader(one: Node) -> None:
    array = np.arange(300_000, dtype="<f8")
    with (
        io.couple("flow", "write", timeout_s=60) as writer,
        io.couple("flow", "read", timeout_s=60) as reader,
    ):
        with writer.open(4) as file:
            np.save(file, array)
            file.seek(0)
            assert (np.load(file) == array).all()  # a writer reads what it wrote
        with reader.open(reader.next()) as file:
            assert file.version == 4
            assert (np.load(file) == array).all()
            with pytest.raises(stdlib_io.UnsupportedOperation, match="does not change"):
                file.write(b"more")
        reader.commit(4)


def test_a_version_with_gaps_and_another_size_reads_as_a_file_would(one: Node, tmp_path: Path) -> None:
    with (
        io.couple("flow", "write", timeout_s=60) as writer,
        io.couple("flow", "read", timeout_s=60) as reader,
        open(tmp_path / "plain", "w+b", buffering=0) as plain,
    ):
        with writer.open(0) as version:
            for file in (version, plain):
                file.seek(3_000_000)
                file.write(b"far")
                file.seek(-1, 2)
                file.write(memoryview(b"xyz"))
                file.truncate(3_000_004)
                file.seek(5)
                file.write(b"")
                file.write(b"near")
        with reader.open(reader.next()) as version:
            plain.seek(0)
            assert version.read() == plain.read()
            assert version.seek(10, 2) == 3_000_014 and version.read(5) == b""
            with pytest.raises(ValueError, match="before the beginning"):
                version.seek(-1)
        with pytest.raises(ValueError, match="closed"):
            version.read(1)
        reader.commit(0)


def test_a_version_whose_writer_failed_does_not_appear(one: Node) -> None:
    with (
        pytest.raises(RuntimeError),
        io.couple("flow", "write", timeout_s=60) as writer,
        writer.open(0) as file,
    ):
        file.write(b"half")
        raise RuntimeError
    with pytest.raises(io.IoError), io.couple("flow", "read", timeout_s=1) as late:
        late.next()
