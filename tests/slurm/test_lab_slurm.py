"""The lab's Slurm: jobs of an ordinary user on the lab's hosts, killed daemons, and nothing left behind."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from harness import ran
from slurm_support import USER, Cluster
from waystage.interconnect.graphml import read_topology
from waystage.worlds.lab import glusterfs
from waystage.worlds.lab.commands import environment, program
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab, take_down
from waystage.worlds.lab.processes import end
from waystage.worlds.lab.slurm import LabSlurm, available
from waystage.worlds.lab.slurm_conf import (
    MANAGEMENT,
    SlurmFolders,
    management_address,
    slurm_conf,
    topology_conf,
)

CHECK = (sys.executable, "-m", "waystage", "slurm", "check")

lab_test = pytest.mark.lab


def test_switches_of_a_fat_tree_become_groups_below_one_top() -> None:
    assert topology_conf(read_topology("paper")).splitlines() == [
        "SwitchName=edge1 Nodes=c1,c2,c3",
        "SwitchName=edge2 Nodes=c4,c5,c6",
        "SwitchName=waystage-top Switches=edge1,edge2",
    ]


def test_storage_hosts_are_no_nodes_and_addresses_are_of_the_management_network() -> None:
    text = slurm_conf(read_topology("paper"), SlurmFolders(base=Path("/x")), name="Lab", memory_mib=1000)
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert [line.split()[0] for line in nodes] == [f"NodeName=c{i}" for i in range(1, 7)]
    assert "NodeAddr=10.59.0.2 " in nodes[0]
    assert "ClusterName=lab" in text.splitlines()
    with pytest.raises(ValueError, match="no address"):
        management_address(MANAGEMENT.num_addresses)


@lab_test
def test_a_users_job_runs_on_the_hosts_of_the_lab_as_that_user(cluster: Cluster) -> None:
    job = cluster.submit("id -u; srun --ntasks-per-node=1 hostname | sort; ip -o -4 addr show eth0\n", "-N3")
    cluster.wait(job, "COMPLETED")
    uid, *hosts, address = cluster.output(job).splitlines()
    assert [uid, *hosts] == ["65534", "c1", "c2", "c3"]
    assert "10.57.0.1/16" in address


@lab_test
def test_nodes_of_one_edge_switch_are_preferred(cluster: Cluster) -> None:
    job = cluster.submit("exit 0\n", "-N3", "--exclude=c1")
    assert cluster.wait(job, "COMPLETED")["NodeList"] == "c[4-6]"


@lab_test
def test_jobs_outlive_a_killed_slurmctld(cluster: Cluster) -> None:
    ended = cluster.folder / "controller-was-killed"
    job = cluster.submit(f"until [ -e {ended} ]; do sleep 0.2; done; echo survived\n", "-N1")
    cluster.wait(job, "RUNNING")
    comment = f"{job}-was-seen-running"
    cluster.run("scontrol", "update", f"JobId={job}", f"Comment={comment}", uid=0)
    cluster.until_saved(comment.encode())
    (daemon,) = (d for d in Daemon.read_all(cluster.lab.resources.daemons) if d.name == "slurmctld")
    os.kill(daemon.process.pid, signal.SIGKILL)
    end(daemon.process)
    with pytest.raises(LabError, match=r"slurmctld of lab .* has stopped"):
        cluster.lab.check()
    cluster.slurm.start_controller()
    cluster.lab.check()
    ended.touch()
    cluster.wait(job, "COMPLETED")
    assert cluster.output(job) == "survived\n"


@lab_test
def test_a_lab_with_slurm_leaves_nothing_behind() -> None:
    if os.geteuid() != 0 or not available():
        pytest.skip("needs root and Slurm")
    name = f"z{os.getpid()}"
    with Lab(name, read_topology("paper")) as lab:
        LabSlurm(lab).start()
        run_dir = lab.run_dir
        daemons = Daemon.read_all(lab.resources.daemons)
        assert {"munged", "slurmctld", "slurmd on c1", "slurmd on c6"} <= {d.name for d in daemons}
    assert not any(daemon.process.alive for daemon in daemons)
    assert not run_dir.exists()
    assert not lab.resources.namespace_files()


@lab_test
def test_another_user_reads_neither_the_key_nor_the_scripts_of_jobs(cluster: Cluster) -> None:
    for secret in (cluster.slurm.folders.munge / "key", cluster.slurm.folders.state):
        done = cluster.run("cat" if secret.is_file() else "ls", secret)
        assert done.code != 0 and "Permission denied" in done.err


@lab_test
def test_the_global_file_system_is_every_users_and_goes_with_the_lab() -> None:
    if os.geteuid() != 0 or not available() or glusterfs.missing("x") is not None:
        pytest.skip("needs root, Slurm and GlusterFS")
    name = f"g{os.getpid()}"
    try:
        with Lab(name, read_topology("paper")) as lab:
            slurm = LabSlurm(lab)
            slurm.start(None)
            point = slurm.start_global_fs()
            become = [program("setpriv"), f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "sh", "-c"]
            ran([*become, f"mkdir {point}/mine && echo text >{point}/mine/file"]).expect(0)
            enter = lab.resources.enter_host("c4")
            assert ran([*enter, *become, f"cat {point}/mine/file"]).out == "text\n"
        assert not os.path.ismount(point) and not lab.run_dir.exists()
    finally:
        take_down(name)


@lab_test
def test_a_slurm_user_other_than_root_stages_for_the_users_of_jobs(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not available() or "slurm" not in {each.pw_name for each in pwd.getpwall()}:
        pytest.skip("needs root, Slurm and its account")
    name = f"u{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="waystage-slurm-") as text:
        folder = Path(text)
        (folder / "archive").write_bytes(b"text")
        for each in (folder, folder / "archive"):
            os.chown(each, USER, USER)
        folder.chmod(0o700)  # SlurmUser cannot look into it
        try:
            with Lab(name, read_topology("paper"), host_bytes=64 << 20) as lab:
                slurm = LabSlurm(lab)
                try:
                    slurm.start("burst-buffer", user="slurm")
                except LabError as error:
                    if "install Waystage where it can" in str(error):
                        pytest.skip(str(error))
                    raise
                found = Cluster(lab, slurm, folder)
                job = found.submit(
                    f"#BB_LUA stage_in source={folder}/archive destination={folder}/in\ncat {folder}/in\n"
                )
                found.wait(job, "COMPLETED")
                assert found.output(job) == "text" and (folder / "in").stat().st_uid == USER
                assert (slurm.folders.hooks).stat().st_uid == pwd.getpwnam("slurm").pw_uid
                said = ran([*slurm.enter(), *CHECK, "--conf", str(slurm.folders.conf)], env=environment()).out
                assert "slurm may submit at" in said, said
        finally:
            take_down(name)
