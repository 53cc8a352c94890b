"""Quotas and rights: what the storage refuses reaches every rank as the MPI error class of its reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpi_io.conftest import DEADLINE_S, OPEN_MPI

PROGRAM = """
import sys
from mpi4py import MPI
comm, path, each = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
names = {getattr(MPI, name): name for name in ("ERR_QUOTA", "ERR_ACCESS", "ERR_NO_SPACE", "ERR_IO")}
said = "none"
try:
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
    try:
        file.Write_at_all(each * comm.rank, bytes([65 + comm.rank]) * each)
    except MPI.Exception as error:
        said = names.get(error.Get_error_class(), str(error))
    file.Close()
except MPI.Exception as error:
    said = "open " + names.get(error.Get_error_class(), str(error))
all_said = comm.gather(said)
if all_said:
    print(*all_said, sep=",", flush=True)
"""


def run(path: Path, each: int) -> str:
    """Two ranks as a root without the rights to pass over modes and quotas; what each says, joined."""
    limited = ["setpriv", "--bounding-set=-sys_resource,-dac_override,-dac_read_search"]
    launch = [*limited, sys.executable, "-m", "waystage", "mpi", "--io", "--", *OPEN_MPI.launcher, "-n", "2"]
    done = subprocess.run(
        [*launch, "/usr/bin/python3", "-c", PROGRAM, str(path), str(each)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("WAYSTAGE_IO_")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    """A subvolume of a Btrfs in a file, which may have 1 MiB."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.btrfs", "setpriv", "mpirun.openmpi"))):
        pytest.skip("needs root, btrfs-progs, setpriv and Open MPI")
    image, place = tmp_path / "image", tmp_path / "mount"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    steps: list[list[str | Path]] = [
        ["mkfs.btrfs", "-q", image],
        ["mount", "-o", "loop", image, place],
        ["btrfs", "quota", "enable", place],
        ["btrfs", "subvolume", "create", place / "part"],
        ["btrfs", "qgroup", "limit", "1M", place / "part"],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no file systems with quotas here: {done.stderr.strip()}")
        yield place / "part"
    finally:
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def test_a_quota_is_its_own_error_class_and_what_was_acknowledged_stays(limited: Path) -> None:
    assert run(limited / "kept", 100_000) == "none,none"
    kept = (limited / "kept").read_bytes()
    assert run(limited / "more", 1_000_000) == "ERR_QUOTA,ERR_QUOTA"
    assert (limited / "kept").read_bytes() == kept == b"A" * 100_000 + b"B" * 100_000
    (limited / "more").unlink()
    assert run(limited / "more", 100_000) == "none,none"


def test_a_file_without_rights_is_refused_at_the_open(limited: Path) -> None:
    (limited / "closed").write_bytes(b"before")
    (limited / "closed").chmod(0)
    assert run(limited / "closed", 100) == "open ERR_ACCESS,open ERR_ACCESS"
    assert (limited / "closed").read_bytes() == b"before"
