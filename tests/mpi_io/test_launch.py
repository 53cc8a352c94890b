"""What `waystage mpi` does around a program: errors, exit status, cleaning up, killed aggregators and launchers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpi_io.conftest import DEADLINE_S, OPEN_MPI, Mpi, run_mpi

WAYSTAGE = [sys.executable, "-m", "waystage"]


def wait_until(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def aggregators_of(environment: str) -> list[int]:
    """Processes whose environment has `environment` and that serve a node."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if b"aggregator" in command and environment.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def environment_of(process: int) -> dict[str, str]:
    text = Path(f"/proc/{process}/environ").read_text(encoding="utf-8")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


@pytest.fixture
def looping(mpi: Mpi, compiled: Callable[..., Path]) -> Path:
    return compiled(mpi.compiler("mpicc"), "io_loop.c", name=f"io-loop-{mpi.name}")


def test_the_exit_status_is_the_programs() -> None:
    done = subprocess.run([*WAYSTAGE, "mpi", "--io", "--", "false"], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr == b""


def test_one_sentence_without_a_compiler(tmp_path: Path) -> None:
    done = subprocess.run(
        [*WAYSTAGE, "mpi", "--io", "--mpicc", "no-such-mpicc", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1 and "no-such-mpicc" in done.stderr


def test_a_component_that_the_user_left_out_is_said(compiled: Callable[..., Path], tmp_path: Path) -> None:
    program = compiled("mpicc.openmpi", "io_loop.c", name="io-loop-openmpi")
    selected = Mpi(OPEN_MPI.name, (*OPEN_MPI.launcher, "--mca", "io", "romio321"))
    ran = run_mpi(selected, str(program), str(tmp_path / "file"), "1", io=())
    assert ran.code == 0
    assert "OMPI_MCA_io=romio321 leaves Waystage out" in ran.err


def test_an_aggregator_that_does_not_start_is_said_with_its_reason(
    compiled: Callable[..., Path], tmp_path: Path
) -> None:
    """203.0.113.0/24 is reserved for documentation (RFC 5737)."""
    program = compiled("mpicc.openmpi", "io_loop.c", name="io-loop-openmpi")
    io = ("--network", "203.0.113.0/24")
    ran = run_mpi(OPEN_MPI, str(program), str(tmp_path / "file"), "1", io=io)
    assert (ran.code, ran.out.strip()) == (0, "wrong 0")
    assert (
        ran.err.count("\n") == 1
        and "does not start: --network: this host has no IPv4 address in 203" in ran.err
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--io", "--network", "10.0.0.0/40"], "no IPv4 prefix"),
        (["--io", "--network", "two words"], "no network"),
        (["--profile", "p", "--network", "lo"], "give --io too"),
    ],
)
def test_a_network_that_is_none_is_refused_before_the_program_runs(
    words: list[str], why: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*WAYSTAGE, "mpi", *words, "--", "touch", "ran"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and why in done.stderr and list(tmp_path.iterdir()) == []


def test_killed_aggregators_cost_no_byte(mpi: Mpi, looping: Path, tmp_path: Path) -> None:
    """Two nodes; an aggregator is killed, then the other or the first one's successor."""
    tag, file = f"WAYSTAGE_TEST_TAG={tmp_path}", tmp_path / "file"
    setting = (
        ["-x", "WAYSTAGE_IO_NODE={}"] if mpi.name == OPEN_MPI.name else ["-env", "WAYSTAGE_IO_NODE", "{}"]
    )
    end = tmp_path / "end"
    program = ["-n", "2", *setting, str(looping), str(file), "1", str(end)]
    words = [[word.format(node) for word in program] for node in ("one", "two")]
    process = subprocess.Popen(
        [*WAYSTAGE, "mpi", "--io", "--", *mpi.launcher, *words[0], ":", *words[1]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAYSTAGE_TEST_TAG": str(tmp_path)},
    )
    killed: list[int] = []
    sizes = [0]

    def may_kill() -> bool:
        assert process.poll() is None, f"it ended before the kill, {sizes}"
        return file.exists() and file.stat().st_size > sizes[-1] and len(aggregators_of(tag)) == 2

    try:
        for _ in range(2):
            wait_until(may_kill, "the file grows")
            killed.append(max(aggregators_of(tag)))
            os.kill(killed[-1], signal.SIGKILL)
            sizes.append(file.stat().st_size)
        end.touch()
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out.strip(), errors) == (0, "wrong 0", "")
    finally:
        process.kill()


def supervisors_of(tag: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            named = (folder / "comm").read_text().strip() == "waystage-io"
            if named and tag.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_killed_supervisor_is_replaced_and_cleans_up_at_the_end(
    mpi: Mpi, looping: Path, tmp_path: Path
) -> None:
    tag, file = f"WAYSTAGE_TEST_TAG={tmp_path}", tmp_path / "file"
    process = started(mpi, looping, tmp_path)
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0, "the file grows")
        folder = Path(environment_of(aggregators_of(tag)[0])["WAYSTAGE_IO_SOCKET"]).parent
        # Others that ranks called meanwhile see that there is one, and end.
        wait_until(lambda: len(supervisors_of(tag)) == 1, "one supervisor")
        before = supervisors_of(tag)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: set(supervisors_of(tag)) - set(before), "another supervisor")
        (tmp_path / "end").touch()
        assert process.wait(DEADLINE_S) == 0
        wait_until(lambda: not folder.exists(), "the node's folder is removed")
        wait_until(lambda: not aggregators_of(tag), "the aggregator's end")
    finally:
        process.kill()


def started(mpi: Mpi, looping: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Two ranks that write to `file` in `folder` until `end` is there; their processes are tagged with the folder."""
    program = ["-n", "2", str(looping), str(folder / "file"), "1", str(folder / "end")]
    return subprocess.Popen(
        [*WAYSTAGE, "mpi", "--io", "--", *mpi.launcher, *program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "WAYSTAGE_TEST_TAG": str(folder)},
        start_new_session=True,
    )


def test_nothing_is_left_after_the_launcher_was_killed(mpi: Mpi, looping: Path, tmp_path: Path) -> None:
    tag = f"WAYSTAGE_TEST_TAG={tmp_path}"
    process = started(mpi, looping, tmp_path)
    try:
        wait_until(lambda: (tmp_path / "file").exists(), "the program's file")
        folder = Path(environment_of(aggregators_of(tag)[0])["WAYSTAGE_IO_SOCKET"]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        )
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        process.wait(DEADLINE_S)
        wait_until(lambda: not folder.exists(), "the node's folder is removed")
        wait_until(lambda: not aggregators_of(tag), "the aggregator's end")
    finally:
        process.kill()


def test_the_token_is_in_no_command_line(mpi: Mpi, looping: Path, tmp_path: Path) -> None:
    process = started(mpi, looping, tmp_path)
    try:
        wait_until(lambda: aggregators_of(f"WAYSTAGE_TEST_TAG={tmp_path}"), "an aggregator")
        token = environment_of(aggregators_of(f"WAYSTAGE_TEST_TAG={tmp_path}")[0])["WAYSTAGE_IO_TOKEN"]
        assert len(token) == 64
        for commands in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert token.encode() not in commands.read_bytes()
            except OSError:
                continue
        (tmp_path / "end").touch()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
