"""Programs and files on the lab's hosts: what runs, what arrives, and what is left after a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, wait_until
from waystage.events import Direction
from waystage.experiment.programs import COLLECTIVES
from waystage.worlds.lab import mpi, staging
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.processes import in_namespaces

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or shutil.which("mpicc") is None,
    reason="needs the Debian packages openmpi-bin and libopenmpi-dev",
)
pytestmark = pytest.mark.lab


def finish(job: mpi.MpiJob) -> tuple[int, str, str]:
    try:
        out, err = job.communicate(timeout=WAIT_S)
    finally:
        job.kill()
    return job.returncode, out, err


def start(lab: Lab, nodes: list[str], argv: list[str], **keywords: int) -> mpi.MpiJob:
    return mpi.start(lab, nodes, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **keywords)


def processes(lab: Lab) -> set[int]:
    return set(in_namespaces(lab.resources.namespace_files()))


# -- MPI --------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("program", mpi.SHIPPED)
def test_shipped_programs_run_across_hosts_and_report_every_iteration(lab: Lab, program: str) -> None:
    before = {
        d.node: d.bytes for link in lab.links().links for d in link.directions if d.node.startswith("c")
    }
    argv = mpi.shipped(program, iterations=4, message=100_000, time_s=0.01)
    nodes = ["c1", "c4", "c2", "c5"][: 4 if program == "cg" else 3]
    code, out, err = finish(start(lab, nodes, argv))
    assert code == 0, err
    report = json.loads(out)
    assert (report["ranks"], report["iterations"], report["message"]) == (len(nodes), 4, 100_000)
    assert len(report["iteration_s"]) == 4
    assert report["total_s"] >= max(4 * 0.01, *report["iteration_s"])
    after = {d.node: d.bytes for link in lab.links().links for d in link.directions if d.node.startswith("c")}
    if program in COLLECTIVES:
        # Which rank sends what depends on the algorithm; all together send this for three ranks.
        sent = sum(after[node] - before[node] for node in nodes)
    else:
        sent = after["c4"] - before["c4"]
    # Rank 1 of a 2 x 2 grid exchanges vectors with its neighbour in the row and with its transposed place.
    expected = {
        "alltoall": 4 * 2 * 100_000,
        "ring": 4 * 100_000,
        "cg": 4 * 2 * 100_000,
        "none": 0,
        "allreduce": 4 * 2 * 2 * 100_000,
        "bcast-reduce": 4 * 2 * 100_000,
    }[program]
    assert expected <= sent < expected * 1.1 + 200_000, "the ranks' data crossed the fabric, once"
    assert after["c3"] - before["c3"] < 20_000


@needs_mpi
def test_ranks_follow_the_order_of_the_nodes(lab: Lab) -> None:
    script = "echo $OMPI_COMM_WORLD_RANK $(hostname)"
    code, out, err = finish(start(lab, ["c5", "c2"], ["sh", "-c", script], processes_per_node=2))
    assert code == 0, err
    assert sorted(out.split("\n")) == ["", "0 c5", "1 c5", "2 c2", "3 c2"]


@needs_mpi
def test_a_program_that_fails_says_so_by_its_status(lab: Lab) -> None:
    code, _, _ = finish(start(lab, ["c1", "c4"], ["sh", "-c", "exit 7"]))
    assert code == 7
    code, _, err = finish(start(lab, ["c1", "c4"], ["/nonexistent/program"]))
    assert code != 0
    assert "/nonexistent/program" in err
    code, _, err = finish(start(lab, ["c1", "c4"], [str(mpi.build("alltoall")), "--iterations", "zero"]))
    assert code != 0
    assert "option --iterations: 'zero' is not between" in err


@needs_mpi
def test_killing_a_job_ends_every_process_it_started_wherever_it_hid(lab: Lab) -> None:
    before = processes(lab)
    # A rank that ignores SIGTERM and has left its session, and a child that its parent has abandoned.
    script = "trap '' TERM; (setsid sleep 300 &); setsid sleep 300"
    job = start(lab, ["c1", "c4", "c6"], ["sh", "-c", script])
    wait_until(lambda: sum("sleep" in name_of(p) for p in processes(lab)) == 6)
    job.terminate()
    job.communicate(timeout=WAIT_S)
    wait_until(lambda: processes(lab) == before)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


@needs_mpi
def test_a_program_that_fills_the_disk_fills_its_host_s_and_no_more(lab: Lab) -> None:
    script = "head -c 80000000 /dev/zero > big"
    code, _, err = finish(start(lab, ["c2"], ["sh", "-c", script]))
    assert code != 0
    assert "No space left on device" in err
    assert (lab.host_dir("c2") / "big").stat().st_size <= lab.host_bytes
    (lab.host_dir("c1") / "room").write_bytes(b"x")


@needs_mpi
def test_jobs_leave_nothing_in_the_machine_s_temporary_folder(lab: Lab) -> None:
    before = set(os.listdir("/tmp"))
    code, _, err = finish(start(lab, ["c1", "c4"], ["true"]))
    assert code == 0, err
    # Those of a job beside this test, which runs on no lab, are named after this machine.
    names = tuple(f"ompi.{host.name}." for host in lab.topology.hosts)
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith(names)]


@needs_mpi
def test_no_more_of_a_message_waits_before_a_link_than_leaves_in_5_ms(lab: Lab) -> None:
    words = mpi.command(lab, ["c1", "c4"], ["true"])
    given = {
        name: value for word, name, value in zip(words, words[1:], words[2:], strict=False) if word == "--mca"
    }
    # The links of this topology have 100 Mbit/s.
    assert given["btl_tcp_flags"] == "1"
    assert given["btl_tcp_max_send_size"] == "62500"
    slowest = min(link.capacity_bps for link in lab.topology.links)
    assert given["btl_tcp_rcvbuf"] == str(max(32_768, round(slowest / 8 * 0.005)))
    assert given["btl_tcp_eager_limit"] == given["btl_tcp_rndv_eager_limit"] == "31250"
    held = lab.exec("c1", ["cat", "/proc/sys/net/ipv4/tcp_notsent_lowat"], stdout=subprocess.PIPE, text=True)
    assert held.communicate()[0].strip() == "62500"


@needs_mpi
def test_a_parameter_of_the_experiment_takes_the_place_of_the_lab_s(lab: Lab) -> None:
    words = mpi.command(lab, ["c1"], ["true"], options=["--mca", "btl_tcp_flags", "6"])
    assert [words[at + 1] for at, word in enumerate(words) if word == "btl_tcp_flags"] == ["6"]


@needs_mpi
def test_unknown_nodes_and_programs_are_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match="has no host 'c9'"):
        mpi.start(lab, ["c1", "c9"], ["true"])
    with pytest.raises(LabError, match="at least one node"):
        mpi.start(lab, [], ["true"])
    with pytest.raises(LabError, match=f"no shipped program 'allgather': there are {', '.join(mpi.SHIPPED)}"):
        mpi.build("allgather")


@needs_mpi
def test_programs_are_compiled_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = mpi.build("none")
    made = first.stat().st_mtime_ns
    assert mpi.build("none").stat().st_mtime_ns == made
    monkeypatch.setattr(mpi, "_FLAGS", (*mpi._FLAGS, "-O0"))
    assert mpi.build("none") != first
    assert {p.name for p in first.parent.iterdir()} == {first.name, mpi.build("none").name}
    monkeypatch.setattr(mpi, "_FLAGS", ("-fno-such-flag",))
    with pytest.raises(LabError, match=r"mpicc could not compile none\.c: .*no-such-flag"):
        mpi.build("none")
    assert len(list(first.parent.iterdir())) == 2, "a build that failed leaves nothing"


# -- staging ----------------------------------------------------------------------------------


@pytest.fixture
def services(lab: Lab) -> Iterator[staging.StagingServices]:
    with staging.StagingServices(lab) as services:
        yield services


@pytest.mark.parametrize(("direction", "files"), [("in", 1), ("out", 3)])
def test_staged_bytes_cross_the_fabric_and_arrive_whole(
    lab: Lab, services: staging.StagingServices, direction: Direction, files: int
) -> None:
    size = 3_000_001
    before, dropped = carried(lab), lab.links().cpu_drops
    transfer = staging.stage(lab, "17", direction, "c5", storage="storage", size=size, files=files)
    moved = transfer.wait(60)
    assert moved.bytes == size
    # What a busy machine dropped is sent again, with what was on its way behind it.
    most = size * (2 if lab.links().cpu_drops > dropped else 1.05)
    assert size <= carried(lab) - before < most
    receiver, sender = ("c5", "storage") if direction == "in" else ("storage", "c5")
    arrived = sorted((staging.job_dir(lab, receiver, "17") / f"{direction}-c5").iterdir())
    assert len(arrived) == files
    for file in arrived:
        assert file.read_bytes() == (lab.host_dir(sender) / "data" / file.name).read_bytes()
        assert set(file.read_bytes()[:4096]) - {0}, "zeros could be shortened on the way"
    staging.remove_job(lab, "17")
    assert not staging.job_dir(lab, receiver, "17").exists()


def carried(lab: Lab) -> int:
    """Bytes between the two edge switches, by way of core1, both ways."""
    link = next(k for k in lab.links().links if k.name == "edge1:5-core1:1")
    return sum(d.bytes for d in link.directions)


def test_given_files_are_staged(lab: Lab, services: staging.StagingServices) -> None:
    source = lab.host_dir("storage") / "data" / "an input.nc"
    source.write_bytes(b"mesh" * 1000)
    moved = staging.stage(lab, "a b/../c", "in", "c1", storage="storage", paths=(source,)).wait(30)
    assert moved.bytes == 4000
    (arrived,) = staging.job_dir(lab, "c1", "a b/../c").rglob("*.nc")
    assert arrived.read_bytes() == source.read_bytes()
    assert arrived.is_relative_to(lab.host_dir("c1") / "jobs"), "a job's id is no path"
    with pytest.raises(LabError, match="is not in storage's storage"):
        staging.stage(lab, "1", "in", "c1", storage="storage", paths=(Path("/etc/passwd"),))


def test_no_space_on_the_storage_host_is_reported_by_its_server(
    lab: Lab, services: staging.StagingServices
) -> None:
    staging.source_file(lab, "c1", 8 << 20, 0)
    (lab.host_dir("storage") / "full").write_bytes(bytes(60 << 20))
    before = carried(lab)
    with pytest.raises(LabError, match="stage-out of job 3 from c1 to storage: no space left"):
        staging.stage(lab, "3", "out", "c1", storage="storage", size=8 << 20).wait(60)
    assert sorted(p.name for p in lab.host_dir("storage").rglob("*") if p.is_file()) == ["full"]
    assert carried(lab) - before < 6 << 20, "the rest of the file is not sent for nothing"


def test_no_space_on_the_receiver_is_reported_and_what_arrived_in_part_is_removed(
    lab: Lab, services: staging.StagingServices
) -> None:
    (lab.host_dir("c1") / "full").write_bytes(bytes(60 << 20))
    with pytest.raises(LabError, match="stage-in of job 3 from storage to c1: no space left"):
        staging.stage(lab, "3", "in", "c1", storage="storage", size=8 << 20).wait(60)
    assert sorted(p.name for p in lab.host_dir("c1").rglob("*") if p.is_file()) == ["full"]
    with pytest.raises(LabError, match="bytes to be staged do not fit on storage: No space left"):
        staging.stage(lab, "3", "in", "c1", storage="storage", size=70 << 20)
    assert not [p for p in lab.host_dir("storage").rglob(".*") if p.is_file()]


@pytest.mark.parametrize(("direction", "receiver"), [("in", "c4"), ("out", "storage")])
def test_a_transfer_that_is_killed_leaves_no_part_and_no_connection(
    lab: Lab, services: staging.StagingServices, direction: Direction, receiver: str
) -> None:
    transfer = staging.stage(lab, "4", direction, "c4", storage="storage", size=50 << 20)
    transfer._moving.set_rate(1 << 20)  # for longer than the test
    wait_until(lambda: any(p.is_file() for p in staging.job_dir(lab, receiver, "4").rglob("*")))
    assert not transfer.ended()
    assert connections(lab, "c4") > 0
    transfer.kill()
    assert not [p for p in staging.job_dir(lab, receiver, "4").rglob("*") if p.is_file()]
    with pytest.raises(LabError, match=f"stage-{direction} of job 4 from .*: was stopped"):
        transfer.wait(0)
    wait_until(lambda: connections(lab, "storage") == 0)
    services.check()


def connections(lab: Lab, host: str) -> int:
    """Open TCP connections of a host, those that wait for their last packets left out."""
    enter, environment = lab.enter(host)
    words = [*enter, "ss", "-Htn", "state", "established"]
    return len(
        subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    )


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_storage_service_that_ends_fails_the_transfer_and_is_named(
    lab: Lab, services: staging.StagingServices, direction: Direction
) -> None:
    services.check()
    transfer = staging.stage(lab, "5", direction, "c4", storage="storage", size=50 << 20)
    receiver = "c4" if direction == "in" else "storage"
    arrived = staging.job_dir(lab, receiver, "5")
    wait_until(lambda: any(p.is_file() and p.stat().st_size > 0 for p in arrived.rglob("*")))
    for _, _, server in services._servers:
        server.cancel()
    with pytest.raises(LabError, match=r"stage-\w+ of job 5 from .*:8730 closed the connection before all"):
        transfer.wait(60)
    assert not [p for p in staging.job_dir(lab, receiver, "5").rglob("*") if p.is_file()]
    with pytest.raises(LabError, match="service of storage has ended"):
        services.check()


def test_without_its_service_a_transfer_fails_at_once(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"stage-in of job 9 from storage to c4: .*:8730: Connection refused"):
        staging.stage(lab, "9", "in", "c4", storage="storage", size=1).wait(30)


def test_a_port_in_use_is_reported_and_nothing_stays(lab: Lab, services: staging.StagingServices) -> None:
    with pytest.raises(LabError, match=r"staging service of storage did not start on port 8730: .*in use"):
        staging.StagingServices(lab).start()
    services.stop()
    with staging.StagingServices(lab) as again:
        again.check()


def test_transfers_side_by_side_all_arrive(lab: Lab, services: staging.StagingServices) -> None:
    nodes = ["c1", "c2", "c4", "c5"]
    going = [staging.stage(lab, "10", "in", node, storage="storage", size=500_000, files=5) for node in nodes]
    going += [staging.stage(lab, "10", "out", node, storage="storage", size=500_000) for node in nodes]
    assert [transfer.wait(60).bytes for transfer in going] == [500_000] * 8


def test_an_interrupted_wait_is_not_late(lab: Lab, services: staging.StagingServices) -> None:
    transfer = staging.stage(lab, "11", "in", "c4", storage="storage", size=40 << 20)
    transfer._moving.set_rate(1 << 20)  # for longer than the test
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        transfer.wait()
    assert not transfer.ended(), "it was interrupted before its end"
    transfer.kill()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_io_of_a_job_moves_its_bytes_by_the_port_of_its_class(
    lab: Lab, services: staging.StagingServices, direction: str
) -> None:
    lab.ofctl("add-flow", "edge1", "priority=30,cookie=0x10,tcp,tp_src=8731,actions=output:5")
    lab.ofctl(
        "add-flow",
        "edge1",
        f"priority=30,cookie=0x10,tcp,tp_dst=8731,actions=output:{port_of(lab, 'storage')}",
    )
    size = staging.IO_PIECE_BYTES + 1000
    moved = staging.job_io(lab, "6", direction, "c4", storage="storage", size=size).wait(60)  # type: ignore[arg-type]
    assert moved.bytes == size

    def counted() -> int:
        flows = lab.ofctl("dump-flows", "edge1", "cookie=0x10/-1")
        return sum(int(n) for n in re.findall(r"n_bytes=(\d+)", flows))

    # Open vSwitch brings its counters up to date within half a second.
    wait_until(lambda: counted() > size)


def port_of(lab: Lab, host: str) -> int:
    return lab.topology.attachment[host][1]


def test_io_without_end_runs_until_it_is_killed(lab: Lab, services: staging.StagingServices) -> None:
    reading = staging.job_io(lab, "7", "read", "c2", storage="storage", size=None)
    wait_until(lambda: any(p.is_file() for p in staging.job_dir(lab, "c2", "7").rglob("*")))
    assert not reading.ended()
    reading.kill()
    assert not [p for p in staging.job_dir(lab, "c2", "7").rglob("*") if p.is_file()]
    wait_until(lambda: connections(lab, "storage") == 0)


def test_a_host_that_stores_nothing_is_refused(lab: Lab, services: staging.StagingServices) -> None:
    with pytest.raises(LabError, match="'c1' is no storage host of the lab: there are storage"):
        staging.stage(lab, "8", "in", "c4", storage="c1", size=1)
