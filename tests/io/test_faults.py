"""Shared files when something fails: ranks that die, storage that hangs, is full or refuses, sizes beyond 2 GiB."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from coupling_support import TOKEN
from harness import command, wait_until
from io_ranks import Rank, ranks
from waystage import io

ENDS_WITHIN_S = 120
"""Of an operation whose peer died or whose storage hangs: far above the leases below, for busy machines."""

HANGS_S = 10
"""How long a call of storage that hangs takes."""


@pytest.fixture
def aggregator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Starts `waystage aggregator` with options; returns a file whose number delays its storage, in us."""
    folder = tmp_path / "socket"
    folder.mkdir(mode=0o700)
    delay = tmp_path / "delay"
    for name, value in (("SOCKET", f"{folder}/node"), ("TOKEN", TOKEN), ("LEASE_S", "60")):
        monkeypatch.setenv(f"WAYSTAGE_IO_{name}", value)
    running: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> Path:
        fixed = ("--socket", f"{folder}/node", "--listen", "127.0.0.1:0", "--name", "node")
        running.append(
            subprocess.Popen(
                command("aggregator", *fixed, *options),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "WAYSTAGE_IO_DELAY_FILE": str(delay)},
            )
        )
        return delay

    start.processes = running  # type: ignore[attr-defined]
    yield start
    for process in running:
        process.kill()
        process.wait()


def put_at_every_rank(path: Path, size: int, offset: int = 0) -> list[int | None]:
    """The error number of a collective write at each of two ranks; None: it succeeded."""

    def run(comm: Rank) -> int | None:
        with io.open_shared(path, "w+", comm=comm, timeout_s=60) as file:
            try:
                file.put_all(bytes(size), offset + size * comm.rank)
            except io.IoError as error:
                assert str(path) in str(error)
                return error.errno
            return None

    return ranks(2, run)


DYING = """
import os, signal, sys
from waystage import io
class Comm:
    rank, size = int(sys.argv[2]), 2
    def _told(self, text=""):
        print(text, flush=True)
        return sys.stdin.readline().rstrip("\\n")
    def allgather(self, obj):
        return eval(self._told(repr(obj)))
    def bcast(self, obj, root=0):
        return self.allgather(obj)[root]
file = io.open_shared(sys.argv[1], "w", comm=Comm(), timeout_s=60)
file.put_all(b"first", 5 * Comm.rank)
if Comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    file.put_all(b"other", 10)
except io.Lost as error:
    print("lost", error, flush=True)
"""


def test_the_death_of_a_rank_between_operations_ends_those_of_the_others(
    aggregator: Callable[..., Path], tmp_path: Path
) -> None:
    aggregator("--lease", "2")
    words = [sys.executable, "-c", DYING, str(tmp_path / "out")]
    both = [
        subprocess.Popen([*words, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        until = time.monotonic() + ENDS_WITHIN_S
        while True:
            assert time.monotonic() < until
            first = both[0].stdout.readline().rstrip("\n")  # type: ignore[union-attr]
            if first.startswith("lost") or not first:
                break
            # A rank that has died is silent; its launcher would end the others. Here they go on.
            second = both[1].stdout.readline().rstrip("\n")  # type: ignore[union-attr]
            told = f"[{first}, {second or first}]\n"
            for process in both:
                if process.poll() is None and process.stdin is not None:
                    try:
                        process.stdin.write(told)
                        process.stdin.flush()
                    except BrokenPipeError:
                        pass
        assert "rank 1 ended without closing the file" in first
        assert both[1].wait(ENDS_WITHIN_S) == -signal.SIGKILL
        assert (tmp_path / "out").read_bytes()[:10] == b"firstfirst"
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_storage_that_hangs_is_an_error_and_writes_nothing_later(
    aggregator: Callable[..., Path], tmp_path: Path
) -> None:
    delay = aggregator("--storage-timeout", "3", "--lease", "4")
    assert put_at_every_rank(tmp_path / "out", 1000) == [None, None]
    delay.write_text(f"{HANGS_S * 1_000_000}")
    late, began = tmp_path / "late", time.monotonic()
    # The delay is read four times a second: puts before and while it is seen succeed, or fail at some ranks.
    while put_at_every_rank(late, 1000) != [errno.EIO, errno.EIO]:
        assert time.monotonic() - began < ENDS_WITHIN_S, "the delay is not seen"
        late = tmp_path / f"late{time.monotonic_ns()}"
    assert time.monotonic() - began < ENDS_WITHIN_S
    delay.write_text("0")
    # The threads come back, and must not begin what was reported as failed.
    time.sleep(HANGS_S + 1)
    assert late.stat().st_size == 0
    wait_until(lambda: put_at_every_rank(late, 1000) == [None, None])


def test_a_file_that_may_not_grow_is_no_space_and_what_was_acknowledged_stays(
    aggregator: Callable[..., Path], tmp_path: Path
) -> None:
    aggregator()
    assert put_at_every_rank(tmp_path / "out", 1 << 16) == [None, None]
    process = aggregator.processes[0]  # type: ignore[attr-defined]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    assert put_at_every_rank(tmp_path / "out", 1 << 20, offset=1 << 17) == [errno.ENOSPC, errno.ENOSPC]
    assert (tmp_path / "out").stat().st_size >= 1 << 17
    assert put_at_every_rank(tmp_path / "out", 1 << 16) == [None, None]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    places: list[Path] = []

    def mount(*words: str) -> Path:
        place = tmp_path / f"mount{len(places)}"
        place.mkdir()
        done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_full_storage_is_an_error_at_every_rank_and_room_is_used_again(
    aggregator: Callable[..., Path], mounted: Callable[..., Path]
) -> None:
    small = mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    aggregator()
    assert put_at_every_rank(small / "kept", 100_000) == [None, None]
    kept = (small / "kept").read_bytes()
    assert put_at_every_rank(small / "out", 1 << 20) == [errno.ENOSPC, errno.ENOSPC]
    assert (small / "kept").read_bytes() == kept
    (small / "out").unlink()
    assert put_at_every_rank(small / "out", 100_000) == [None, None]


def test_a_read_only_file_system_is_said_at_the_open(
    aggregator: Callable[..., Path], mounted: Callable[..., Path], tmp_path: Path
) -> None:
    fixed = mounted("-t", "tmpfs", "-o", "size=1m,ro", "tmpfs")
    aggregator()

    def run(comm: Rank) -> int | None:
        with pytest.raises(io.IoError) as raised:
            io.open_shared(fixed / "out", "w", comm=comm, timeout_s=60)
        return raised.value.errno

    assert ranks(2, run) == [errno.EROFS, errno.EROFS]


def test_more_than_two_gib_in_one_call(aggregator: Callable[..., Path], tmp_path: Path) -> None:
    """Rows that lie on one another in memory take the bytes of a file of holes; another rank reads its last row."""
    aggregator("--memory", "64M")
    row, rows = 1 << 16, (1 << 15) + 1
    with open(tmp_path / "holes", "wb") as holes:
        holes.truncate(row * rows - 1)
        holes.seek(row * rows - 1)
        holes.write(b"\7")

    def run(comm: Rank) -> tuple[int, int]:
        found = np.zeros(row, "u1")
        all_rows = np.lib.stride_tricks.as_strided(found, (rows, row), (0, 1))
        with io.open_shared(tmp_path / "holes", "r", comm=comm, timeout_s=60) as file:
            if comm.rank == 0:
                return file.get_all(all_rows), 0
            return file.get_all(found, row * (rows - 1)), int(found[-1])

    assert ranks(2, run) == [(row * rows, 0), (row, 7)]


def test_another_user_and_a_wrong_token_are_refused(
    aggregator: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator()
    with io.open_shared(tmp_path / "out", "w", timeout_s=60):
        pass
    monkeypatch.setenv("WAYSTAGE_IO_TOKEN", "another")
    with pytest.raises(io.IoError, match="the token is not this launch's") as raised:
        io.open_shared(tmp_path / "out", "w", timeout_s=60)
    assert raised.value.errno == errno.EPERM
    monkeypatch.setenv("WAYSTAGE_IO_TOKEN", TOKEN)
    if os.geteuid() != 0:
        return
    for folder in (tmp_path / "socket", *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)  # the socket itself must refuse
    (tmp_path / "socket" / "node").chmod(0o777)
    code = (
        "import os\n"
        "from waystage import io\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: io.open_shared('/tmp/x', 'w', timeout_s=60)\n"
        "except io.IoError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another user's" in done.stdout, done.stdout + done.stderr


def test_two_programs_write_one_file_in_turn_and_each_byte_is_of_one_of_them(
    aggregator: Callable[..., Path], tmp_path: Path
) -> None:
    aggregator()

    def run(comm: Rank) -> None:
        rank = comm.rank
        for number in range(2):
            with io.open_shared(tmp_path / "out", "w+", comm=comm, timeout_s=60) as file:
                file.put_all(bytes([10 * number + rank]) * 3000, 3000 * rank)

    writers = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(tmp_path / "out"), str(program)], stdout=subprocess.PIPE
        )
        for program in (1, 2)
    ]
    for writer in writers:
        assert writer.communicate(timeout=ENDS_WITHIN_S)[0].strip() == b"done"
    found = np.fromfile(tmp_path / "out", "u1")
    assert found.size == 40_000 and set(np.unique(found)) <= {1, 2}
    ranks(2, run)
    assert (tmp_path / "out").read_bytes()[:6000] == bytes([10]) * 3000 + bytes([11]) * 3000


TWO = """
import sys
from waystage import io
program = int(sys.argv[2])
with io.open_shared(sys.argv[1], "w+", timeout_s=60) as file:
    for _ in range(20):
        file.put_all(bytes([program]) * 40000, 0)
print("done")
"""
