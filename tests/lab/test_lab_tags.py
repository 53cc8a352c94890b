"""Tags on the packets of unmodified programs, seen at the switches' ports of a lab."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import WAIT_S, wait_until
from waystage import _native
from waystage.interconnect.generate import leaf_spine
from waystage.interconnect.tags import Layout, layout_of
from waystage.worlds.lab import mpi, tag_capture
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

pytestmark = pytest.mark.lab

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or shutil.which("mpicc") is None,
    reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
)

SOURCE = Path(__file__).parents[2] / "shim" / "tests" / "tagged.c"
MESSAGE = struct.Struct("=II QQQ 32s")
UNSHARE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL", "--")
MAGIC, JOB, JOIN, SOCKET = 0x57544731, 1, 2, 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("tagged") / "tagged"
    subprocess.run(["mpicc", "-std=c11", "-O2", "-Wall", "-o", binary, SOURCE], check=True)
    return binary


@pytest.fixture
def fabric(lab_name: str) -> Iterator[tuple[Lab, Layout]]:
    topology = leaf_spine(2, 2, 2)
    layout = layout_of(topology)
    assert layout is not None
    with Lab(lab_name, topology, host_bytes=64 << 20) as lab:
        start_controller(lab, "ecmp")
        yield lab, layout


def service(
    path: Path, layout: Layout, interfaces: list[str], first: int = 3, count: int = 4
) -> _native.TagService:
    widths = [getattr(layout, name) for name in layout.__struct_fields__]
    try:
        return _native.TagService(interfaces, path, widths, [7] * 32, (first, count))
    except OSError as error:
        if "kernel does not take" in str(error) and "ermission" in str(error):
            pytest.skip(str(error))
        raise


def interfaces_of(lab: Lab) -> list[str]:
    return [f"{lab.resources.namespace(host.name)}/eth0" for host in lab.topology.hosts]


def host_ports(lab: Lab) -> list[str]:
    return [
        end.device
        for wire in lab.wiring.wires
        for end in wire.ends
        if not end.is_host and any(e.is_host for e in wire.ends)
    ]


def run(
    lab: Lab, path: Path, nodes: list[str], argv: list[str], *options: str
) -> subprocess.CompletedProcess[str]:
    words = mpi.command(lab, nodes, argv, options=options)
    enter, environment = lab.enter(nodes[0])
    return subprocess.run(
        [*enter, sys.executable, "-m", "waystage", "mpi", "--tags", "--", *words],
        env=environment | {"WAYSTAGE_TAGS_SOCKET": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_mpi
@pytest.mark.parametrize("options", [(), ("--mca", "btl_tcp_links", "3")], ids=["one link", "three links"])
def test_every_packet_has_the_tag_of_its_first_byte_and_the_program_its_result(
    fabric: tuple[Lab, Layout], program: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    lab, layout = fabric
    path = tmp_path / "tags.sock"
    nodes = [host.name for host in lab.topology.hosts]
    running = service(path, layout, interfaces_of(lab))
    try:
        with tag_capture.capturing(lab.resources.fabric, host_ports(lab), layout) as capture:
            done = run(lab, path, nodes, [str(program), "check", "120"], *options)
        assert done.returncode == 0, done.stderr
        assert "no tags" not in done.stderr
        verdict = capture.verdict()
        assert verdict.lost == 0 and verdict.judged > 500, verdict
        assert (verdict.mistagged, verdict.untagged) == (0, 0), verdict.examples
        assert verdict.communicators == 8 and verdict.jobs == {4}, verdict
        wait_until(lambda: running.connections == 0, what="the ended program still has its rings")
    finally:
        running.close()


@needs_mpi
def test_without_a_service_the_program_runs_and_it_is_said_once(
    fabric: tuple[Lab, Layout], program: Path, tmp_path: Path
) -> None:
    lab, _ = fabric
    nodes = [host.name for host in lab.topology.hosts][:2]
    done = run(lab, tmp_path / "none.sock", nodes, [str(program), "check", "10"])
    assert done.returncode == 0
    assert done.stderr.count("no tag service answers") == 1, done.stderr


def ask(
    connection: socket.socket, word: int, *numbers: int, code: bytes = b"", descriptor: int | None = None
) -> tuple[Any, ...]:
    numbers = (*numbers, 0, 0, 0)[:3]
    message = MESSAGE.pack(MAGIC, word, *numbers, code)
    if descriptor is None:
        connection.send(message)
    else:
        socket.send_fds(connection, [message], [descriptor])
    reply, received, _, _ = socket.recv_fds(connection, MESSAGE.size, 4)
    for got in received:
        os.close(got)
    return MESSAGE.unpack(reply) if len(reply) == MESSAGE.size else (0, 99, 0, 0, 0, b"")


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(WAIT_S)
    connection.connect(str(path))
    return connection


def job_when_free(connection: socket.socket) -> tuple[Any, ...]:
    """The answer to a launcher, once the service has seen the last connection of an ended job close."""
    answers = [ask(connection, JOB)]

    def answered() -> bool:
        if answers[-1][1] == 2:
            answers.append(ask(connection, JOB))
        return answers[-1][1] != 2

    wait_until(answered, what="a number becoming free")
    return answers[-1]


def as_another_user(path: Path, ticket: tuple[int, int, int, bytes]) -> int:
    """What the service answers to another user with this ticket."""
    number, uid, serial, code = ticket
    script = (
        "import os,socket,struct,sys; os.setgid(65534); os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1]);"
        "m=struct.Struct('=II QQQ 32s');"
        f"s.send(m.pack({MAGIC},{JOIN},{number},{uid},{serial},bytes.fromhex('{code.hex()}')));"
        "r=s.recv(64); print(m.unpack(r)[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Path]:
    """A service without an interface, whose requests can be attacked."""
    if os.geteuid() != 0:
        pytest.skip("a tag service needs root")
    layout = layout_of(leaf_spine(2, 2, 2))
    assert layout is not None
    path = tmp_path / "tags.sock"
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    running = service(path, layout, [], first=3, count=2)
    yield path
    running.close()


def test_a_ticket_is_of_one_user_one_number_and_one_job(alone: Path) -> None:
    with connected(alone) as launcher, connected(alone) as rank:
        _, status, *ticket = ask(launcher, JOB)
        number, uid, serial, code = ticket
        assert (status, uid) == (0, 0)
        assert as_another_user(alone, (number, uid, serial, code)) == 1, "another user's ticket"
        assert as_another_user(alone, (number, 65534, serial, code)) == 1, "a ticket with a changed user"
        for changed in ((number + 1, uid, serial), (number, uid, serial + 1)):
            assert ask(rank, JOIN, *changed, code=code)[1] == 1
        assert ask(rank, JOIN, number, uid, serial, code=code)[1] == 0
        assert ask(rank, JOIN, number, uid, serial, code=code)[1] == 1, "once a connection"
    with connected(alone) as second, connected(alone) as third, connected(alone) as fourth:
        assert ask(second, JOB)[1] == 0
        again = job_when_free(third)
        assert again[1:3] == (0, number) and again[4] > serial
        assert ask(fourth, JOIN, again[2], again[3], again[4], code=again[5])[1] == 0
        assert ask(connected(alone), JOIN, number, uid, serial, code=code)[1] == 1, (
            "the number is another job's now"
        )
        assert ask(connected(alone), JOB)[1] == 2, "both numbers are in use"


def test_only_tcp_sockets_and_own_slots_are_taken_and_damaged_requests_end_the_connection(
    alone: Path,
) -> None:
    with (
        connected(alone) as launcher,
        connected(alone) as rank,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        _, _, number, uid, serial, code = ask(launcher, JOB)
        assert ask(rank, SOCKET, 0, descriptor=tcp.fileno())[1] == 1, "before it has joined"
        assert ask(rank, JOIN, number, uid, serial, code=code)[1] == 0
        assert ask(rank, SOCKET, 0)[1] == 1
        assert ask(rank, SOCKET, 1 << 20, descriptor=tcp.fileno())[1] == 1
        assert ask(rank, SOCKET, 0, descriptor=rank.fileno())[1] == 1
        with open("/dev/null", "rb") as null:
            assert ask(rank, SOCKET, 0, descriptor=null.fileno())[1] == 1
        assert ask(rank, SOCKET, 0, descriptor=tcp.fileno())[1] == 0
    for damaged in (b"", b"x", bytes(64), MESSAGE.pack(MAGIC, JOIN, 0, 0, 0, b"") + b"y", os.urandom(64)):
        with connected(alone) as hostile:
            hostile.send(damaged)
            assert hostile.recv(100) == b""
    with connected(alone) as launcher:
        assert ask(launcher, JOB)[1] == 0, "others are served"


@needs_mpi
def test_a_killed_program_leaves_nothing(fabric: tuple[Lab, Layout], program: Path, tmp_path: Path) -> None:
    lab, layout = fabric
    path = tmp_path / "tags.sock"
    running = service(path, layout, interfaces_of(lab))
    try:
        nodes = [host.name for host in lab.topology.hosts][:2]
        words = mpi.command(lab, nodes, [str(program), "check", "1000000"])
        enter, environment = lab.enter(nodes[0])
        process = subprocess.Popen(
            [*enter, *UNSHARE, sys.executable, "-m", "waystage", "mpi", "--tags", "--", *words],
            env=environment | {"WAYSTAGE_TAGS_SOCKET": str(path)},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: running.connections >= 3, what="launcher and ranks ask the service")
            time.sleep(0.2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        wait_until(lambda: running.connections == 0, what="what was killed still has its rings")
    finally:
        running.close()
