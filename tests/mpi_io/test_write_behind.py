"""Writes that are acknowledged with a copy at a second aggregator: nothing is lost, errors come with sync and close."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpi_io.conftest import DEADLINE_S, OPEN_MPI, Mpi
from mpi_io.test_cases import COMPLAINTS, TRAPS, by_case
from mpi_io.test_launch import WAYSTAGE, aggregators_of, environment_of, wait_until

EACH = 1 << 20
NODES = ("one", "two")

PROGRAM = f"""
import os, sys, time
from mpi4py import MPI
comm, folder = MPI.COMM_WORLD, sys.argv[1]
names = {{getattr(MPI, name): name for name in ("ERR_NO_SPACE", "ERR_IO")}}
def say(what):
    comm.Barrier()
    if comm.rank == 0:
        open(os.path.join(folder, what + ".tmp"), "w").close()
        os.rename(os.path.join(folder, what + ".tmp"), os.path.join(folder, what))
def wait(what):
    while not os.path.exists(os.path.join(folder, what)):
        time.sleep(0.02)
def tried(act, *arguments):
    try:
        act(*arguments)
    except MPI.Exception as error:
        return names.get(error.Get_error_class(), str(error))
    return "none"
file = MPI.File.Open(comm, os.path.join(folder, "data"), MPI.MODE_CREATE | MPI.MODE_RDWR)
say("opened")
wait("write")
at = comm.rank * {EACH}
said = [tried(file.Write_at_all, at, bytes([65 + comm.rank]) * {EACH})]
say("acknowledged")
wait("go")
"""

SYNCS = """
said += [tried(file.Sync), tried(file.Sync), tried(file.Write_at_all, comm.rank, b"a"), tried(file.Sync)]
file.Close()
said = comm.gather(said)
if said:
    print(*(",".join(one) for one in said), flush=True)
"""

READS = f"""
other = (comm.rank + 1) % comm.size
found = bytearray({EACH})
file.Read_at(other * {EACH}, found)
said.append("right" if found == bytes([65 + other]) * {EACH} else "wrong")
file.Close()
said = comm.gather(said)
if said:
    print(*(",".join(one) for one in said), flush=True)
"""


@contextmanager
def running(text: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Two ranks on two nodes; the first one's storage has the delay in the file `delay`."""
    words = [*WAYSTAGE, "mpi", "--io", "--write-behind", "--", *OPEN_MPI.launcher]
    for node in NODES:
        delay = folder / ("delay" if node == NODES[0] else "none")
        words += [":"] * (node != NODES[0])
        words += ["-n", "1", "-x", f"WAYSTAGE_IO_NODE={node}", "-x", f"WAYSTAGE_IO_DELAY_FILE={delay}"]
        words += ["/usr/bin/python3", "-c", text, str(folder)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAYSTAGE_TEST_TAG": str(folder)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)


def wait_for(folder: Path, what: str, process: subprocess.Popen[str]) -> None:
    def is_there() -> bool:
        assert process.poll() is None, process.communicate()[1][-2000:]
        return (folder / what).exists()

    wait_until(is_there, what)


@pytest.fixture
def mpi4py() -> None:
    done = subprocess.run(["/usr/bin/python3", "-c", "import mpi4py"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs mpi4py of the system")


@pytest.mark.usefixtures("mpi4py")
def test_what_was_acknowledged_is_in_the_file_after_a_kill_before_it_was_written(tmp_path: Path) -> None:
    # No test waits this long: what is written is written by the second node.
    (tmp_path / "delay").write_text(str(500_000_000))
    (tmp_path / "write").touch()
    file = tmp_path / "data"
    expected = b"A" * EACH + b"B" * EACH
    with running(PROGRAM + SYNCS, tmp_path) as process:
        wait_for(tmp_path, "acknowledged", process)
        wait_until(lambda: file.read_bytes()[EACH:] == expected[EACH:], "the second node's part")
        assert file.read_bytes()[:1] == b"\0", "it was not behind"
        first = [
            number
            for number in aggregators_of(f"WAYSTAGE_TEST_TAG={tmp_path}")
            if environment_of(number)["WAYSTAGE_IO_NODE"] == NODES[0]
        ]
        (tmp_path / "delay").write_text("0")
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: file.read_bytes() == expected, "the copy is written")
        (tmp_path / "go").touch()
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out.split(), errors) == (0, ["none," * 4 + "none"] * 2, "")
    assert file.read_bytes() == b"aa" + expected[2:]


@pytest.mark.usefixtures("mpi4py")
def test_a_rank_reads_alone_what_another_wrote_behind(tmp_path: Path) -> None:
    (tmp_path / "delay").write_text("300000")
    for name in ("write", "go"):
        (tmp_path / name).touch()
    with running(PROGRAM + READS, tmp_path) as process:
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out.split(), errors) == (0, ["none,right"] * 2, "")
    assert (tmp_path / "data").read_bytes() == b"A" * EACH + b"B" * EACH


@pytest.mark.usefixtures("mpi4py")
def test_an_error_of_acknowledged_bytes_is_the_next_syncs_at_every_rank(tmp_path: Path) -> None:
    with running(PROGRAM + SYNCS, tmp_path) as process:
        wait_for(tmp_path, "opened", process)
        for number in aggregators_of(f"WAYSTAGE_TEST_TAG={tmp_path}"):
            resource.prlimit(number, resource.RLIMIT_FSIZE, (EACH // 2, EACH // 2))
        for name in ("write", "go"):
            (tmp_path / name).touch()
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors[-2000:]
        assert out.split() == ["none,ERR_NO_SPACE,none,none,none"] * 2


def on_two_nodes(mpi: Mpi, program: Path, *arguments: str) -> list[str]:
    """The launcher's command for two ranks on each."""
    words = list(mpi.launcher)
    for node in NODES:
        is_open_mpi = mpi.name == OPEN_MPI.name
        setting = ["-x", f"WAYSTAGE_IO_NODE={node}"] if is_open_mpi else ["-env", "WAYSTAGE_IO_NODE", node]
        words += [":"] * (node != NODES[0])
        words += ["-n", "2", *setting, str(program), *arguments]
    return words


def test_users_cases_give_the_bytes_and_results_that_they_give_without_it(
    mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(
        mpi.compiler("mpicc"),
        *("io_cases.c", "io_case_list.c", "io_case_alone.c"),
        name=f"io-cases-{mpi.name}",
        flags=("-D_GNU_SOURCE",),
    )
    said = []
    for way in ("written", "behind"):
        folder, options = tmp_path / way, ["--write-behind"] * (way == "behind")
        folder.mkdir()
        words = on_two_nodes(mpi, program, str(folder), *COMPLAINTS, *TRAPS)
        done = subprocess.run(
            [*WAYSTAGE, "mpi", "--io", *options, "--", *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said.append({case: sorted(lines) for case, lines in by_case(done.stdout).items()})
    assert said[0] == said[1]
    for case in (*COMPLAINTS, *TRAPS):
        assert (tmp_path / "written" / case).read_bytes() == (tmp_path / "behind" / case).read_bytes(), case


def test_killed_aggregators_cost_no_byte_that_is_behind(
    mpi: Mpi, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    program = compiled(mpi.compiler("mpicc"), "io_loop.c", name=f"io-loop-{mpi.name}")
    tag, file = f"WAYSTAGE_TEST_TAG={tmp_path}", tmp_path / "file"
    end = tmp_path / "end"
    words = on_two_nodes(mpi, program, str(file), "1", str(end))
    process = subprocess.Popen(
        [*WAYSTAGE, "mpi", "--io", "--write-behind", "--", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAYSTAGE_TEST_TAG": str(tmp_path)},
    )
    sizes = [0]

    def may_kill() -> bool:
        assert process.poll() is None, f"it ended before the kill, {sizes}"
        return file.exists() and file.stat().st_size > sizes[-1] and len(aggregators_of(tag)) == 2

    try:
        for _ in range(2):
            wait_until(may_kill, "the file grows")
            os.kill(max(aggregators_of(tag)), signal.SIGKILL)
            sizes.append(file.stat().st_size)
        end.touch()
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out.strip(), errors) == (0, "wrong 0", "")
    finally:
        process.kill()
