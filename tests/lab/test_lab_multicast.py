"""MPI_Bcast of unmodified programs by the switches of a lab: right bytes with loss, late ranks and kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness import wait_until
from waystage.interconnect.generate import leaf_spine
from waystage.worlds.lab import loss, mpi
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        shutil.which("mpirun") is None or shutil.which("mpicc") is None,
        reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
    ),
]

SOURCE = Path(__file__).parents[2] / "bench" / "_bcast.c"
LAUNCHER = (sys.executable, "-m", "waystage", "mpi", "--multicast", "--")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("bcast") / "bcast"
    subprocess.run(["mpicc", "-O2", "-Wall", "-o", binary, SOURCE], check=True)
    return binary


@pytest.fixture
def fabric(lab_name: str) -> Iterator[Lab]:
    with Lab(lab_name, leaf_spine(2, 2, 2, storage_hosts=0), host_bytes=64 << 20) as lab:
        yield lab


def start(
    lab: Lab, folder: Path, argv: Sequence[str], *, per_node: int = 1, wait_ms: int = 60_000
) -> mpi.MpiJob:
    """A busy controller gives a tree late: the program waits for it."""
    return mpi.start(
        lab,
        [host.name for host in lab.topology.hosts],
        argv,
        processes_per_node=per_node,
        launcher=LAUNCHER,
        variables={
            "WAYSTAGE_FLOWS": str(lab.flow_socket),
            "WAYSTAGE_MULTICAST": "always",
            "WAYSTAGE_MULTICAST_WAIT_MS": str(wait_ms),
            "WAYSTAGE_MULTICAST_STATS": str(folder / "stats"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(lab: Lab, folder: Path, argv: Sequence[str], **how: int) -> dict[str, int]:
    """What all ranks counted; the bytes are right."""
    job = start(lab, folder, argv, **how)
    said, _ = job.communicate(timeout=120)
    line = next((line for line in said.splitlines() if line.startswith("{")), "")
    assert job.returncode == 0 and line, said
    assert json.loads(line)["wrong"] == 0
    found: dict[str, int] = {}
    for file in folder.glob("stats.*"):
        for name, count in json.loads(file.read_text()).items():
            found[name] = found.get(name, 0) + count
        file.unlink()
    return found


def groups(lab: Lab) -> int:
    return sum(lab.ofctl("dump-groups", switch.name).count("type=all") for switch in lab.topology.switches)


def test_all_bytes_arrive_over_a_link_that_loses_packets_and_the_groups_vanish(
    fabric: Lab, program: Path, tmp_path: Path
) -> None:
    start_controller(fabric, "multicast-trees")
    for core in fabric.topology.core_switches:
        loss.lose(fabric, core, fabric.topology.edge_switches[-1], 0.03)
    counts = run(fabric, tmp_path, [str(program), "--calls", "8", "--roots", "--vector", "500000", "2000000"])
    assert counts["operations"] == 4 * 16 and 0 < counts["sent"] <= 8 * (62 + 245), counts
    assert counts["repaired"] >= counts["lost"] > 0
    wait_until(lambda: groups(fabric) == 0, what="the ended program's groups are gone")


def test_a_late_rank_and_two_ranks_of_a_host_get_all_bytes(
    fabric: Lab, program: Path, tmp_path: Path
) -> None:
    start_controller(fabric, "multicast-trees")
    counts = run(
        fabric, tmp_path, [str(program), "--calls", "6", "--late", "5", "65536", "1000000"], per_node=2
    )
    assert counts["operations"] == 8 * 12 and 0 < counts["sent"] <= 6 * (8 + 123), counts


def test_an_allgather_in_place_and_with_gaps_gets_all_bytes(
    fabric: Lab, program: Path, tmp_path: Path
) -> None:
    start_controller(fabric, "multicast-trees")
    counts = run(fabric, tmp_path, [str(program), "--calls", "4", "--allgather", "--vector", "100000"])
    assert counts["operations"] == 4 * 4 * 4


def test_without_a_controller_that_makes_trees_the_program_runs_as_before(
    fabric: Lab, program: Path, tmp_path: Path
) -> None:
    start_controller(fabric, "ecmp")
    counts = run(fabric, tmp_path, [str(program), "--calls", "4", "100000"], wait_ms=200)
    assert counts["operations"] == 0


def test_a_killed_program_leaves_no_group(fabric: Lab, program: Path, tmp_path: Path) -> None:
    start_controller(fabric, "multicast-trees")
    job = start(fabric, tmp_path, [str(program), "--calls", "100000", "200000"])
    try:
        wait_until(lambda: groups(fabric) > 0, what="the program has a tree")
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    wait_until(lambda: groups(fabric) == 0, what="the killed program's groups are gone")


ATTACK = """
import os, socket, struct, sys, time
os.setgid(65534); os.setuid(65534)
print("looking", flush=True)
until = time.monotonic() + 60
found = None
while found is None and time.monotonic() < until:
    for line in open("/proc/net/udp").read().splitlines()[1:]:
        address, port = (int(word, 16) for word in line.split()[1].split(":"))
        if socket.inet_ntoa(struct.pack("=I", address)).startswith("239.87."):
            found = socket.inet_ntoa(struct.pack("=I", address)), port
print("found", found, flush=True)
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    for place in (found, ("0.0.0.0", found[1])):
        try:
            listener.bind(place)
            print("may listen", place, flush=True)
        except OSError:
            pass
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
until = time.monotonic() + 1
sent = 0
while time.monotonic() < until:
    for operation in range(1, 9):
        chunk = sent % 16
        header = struct.pack("=II16sIIII", 0x57534D31, 1, os.urandom(16), operation, 0, chunk, 25)
        sender.sendto(header + b"!" * 8192, found)
        sender.sendto(os.urandom(60), found)
        sent += 1
    time.sleep(0.002)
print("sent", sent)
"""


def test_another_user_of_a_host_can_neither_read_nor_change_a_broadcast(
    fabric: Lab, program: Path, tmp_path: Path
) -> None:
    start_controller(fabric, "multicast-trees")
    host = fabric.topology.hosts[1].name
    enter, environment = fabric.enter(host)
    with subprocess.Popen(
        [*enter, sys.executable, "-c", ATTACK, fabric.host_ip(host)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as attack:
        assert attack.stdout is not None and attack.stdout.readline() == "looking\n"
        counts = run(fabric, tmp_path, [str(program), "--calls", "60", "--roots", "200000"])
        said, _ = attack.communicate(timeout=90)
    assert "found ('239.87." in said and "sent" in said, said
    assert "may listen" not in said
    assert counts["operations"] == 4 * 60 and counts["foreign"] > 0
