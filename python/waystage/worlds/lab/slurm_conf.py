"""The configuration of a lab's Slurm: slurm.conf, topology.conf and cgroup.conf as texts.

Arrives: a topology, the addresses of the management network, folders.
Leaves: texts for slurm.conf(5), topology.conf(5) and cgroup.conf(5).
Must not know: processes, namespaces; nothing is run or written here.

Slurm gives whole nodes (select/linear), so that no two jobs share a link of a host, as in the paper's cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waystage.topology import Topology
from waystage.worlds.lab.resources import SLURM_CONTROLLER

MANAGEMENT = ipaddress.IPv4Network("10.59.0.0/16")
"""The lab's management network, beside the fabric as in a real cluster: Slurm's own messages load no link of it."""

CONTROLLER_PORT, NODE_PORT = 6817, 6818
PARTITION = "lab"
CPUS = 8
"""Processors that each node claims: ranks of a job share this machine's, whatever Slurm counts."""


class SlurmFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and sockets of one lab's Slurm, all below the lab's run directory."""

    base: Path

    @property
    def conf(self) -> Path:
        return self.base / "etc" / "slurm.conf"

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def spool(self) -> Path:
        return self.base / "spool"

    @property
    def logs(self) -> Path:
        return self.base / "log"

    @property
    def hooks(self) -> Path:
        """Of `waystage slurm`."""
        return self.base / "hooks"

    @property
    def stager(self) -> Path:
        """State of the staging service."""
        return self.base / "stager"

    @property
    def stager_socket(self) -> Path:
        return self.base / "stager.sock"

    @property
    def global_fs(self) -> Path:
        """Mount point of the global file system, if the lab has one."""
        return self.base / "global"

    @property
    def global_data(self) -> Path:
        """What an emulated global file system keeps."""
        return self.base / "global-data"

    @property
    def gfarm(self) -> Path:
        """Of the Gfarm at the far end, if the lab has one."""
        return self.base / "gfarm"

    @property
    def far_gfarm(self) -> Path:
        """Mount point of that Gfarm at the near end: its client reaches it over the wide-area path."""
        return self.base / "far"

    @property
    def far_gfarm_there(self) -> Path:
        """Mount point of that Gfarm at the far end."""
        return self.base / "far-there"

    @property
    def munge(self) -> Path:
        return self.base / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "socket"


def management_address(index: int) -> str:
    """Address of the host with that index in the topology; 0 is slurmctld's. Raises ValueError beyond 65,533."""
    if not 0 <= index < MANAGEMENT.num_addresses - 2:
        raise ValueError(f"the management network has no address for host {index}")
    return str(MANAGEMENT.network_address + 1 + index)


def slurm_conf(
    topology: Topology, folders: SlurmFolders, *, name: str, memory_mib: int, user: str = "root"
) -> str:
    """The text of slurm.conf: computing hosts are nodes of one partition, storage hosts are none."""
    lines = [
        f"ClusterName={name.lower()}",
        f"SlurmctldHost={SLURM_CONTROLLER}({management_address(0)})",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        f"SlurmUser={user}",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folders.munge_socket}",
        "MpiDefault=none",
        # No cgroups: a lab must work in containers, and leaves nothing behind.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/linear",
        "TopologyPlugin=topology/tree",
        "SchedulerType=sched/backfill",
        # A lab's jobs take seconds: decisions must not take a minute.
        "SchedulerParameters=bf_interval=1,bf_resolution=1,batch_sched_delay=1,sched_interval=2,sched_min_interval=100000",
        "SlurmctldParameters=idle_on_node_suspend",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "KillWait=5",
        "InactiveLimit=0",
        "MinJobAge=3600",
        "MaxArraySize=10001",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=60",
        "CompleteWait=0",
        f"StateSaveLocation={folders.state}",
        f"SlurmdSpoolDir={folders.spool}/%n",
        f"SlurmctldPidFile={folders.base}/slurmctld.pid",
        f"SlurmdPidFile={folders.base}/slurmd-%n.pid",
        f"SlurmctldLogFile={folders.logs}/slurmctld.log",
        f"SlurmdLogFile={folders.logs}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
    ]
    nodes = []
    for index, host in enumerate(topology.hosts, 1):
        if host.role == "storage":
            continue
        nodes.append(host.name)
        lines.append(
            f"NodeName={host.name} NodeHostname={host.name} NodeAddr={management_address(index)} "
            f"CPUs={CPUS} RealMemory={memory_mib} State=UNKNOWN"
        )
    lines.append(
        f"PartitionName={PARTITION} Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE DefaultTime=10 "
        "OverSubscribe=EXCLUSIVE State=UP"
    )
    return "\n".join(lines) + "\n"


def topology_conf(topology: Topology) -> str:
    """The text of topology.conf for topology/tree.

    Slurm's tree has one parent a switch, a fat tree has several: leaf switches with the same switches above them
    become one group, and the groups meet at one top.
    """
    leaves: dict[str, list[str]] = {}
    for host in topology.hosts:
        if host.role != "storage":
            leaves.setdefault(topology.attachment[host.name][0], []).append(host.name)
    above: dict[str, set[str]] = {leaf: set() for leaf in leaves}
    for link in topology.switch_links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            if here in leaves and there not in leaves:
                above[here].add(there)
    groups: dict[frozenset[str], list[str]] = {}
    for leaf in leaves:
        groups.setdefault(frozenset(above[leaf]), []).append(leaf)
    lines = [f"SwitchName={leaf} Nodes={','.join(hosts)}" for leaf, hosts in leaves.items()]
    if len(leaves) == 1:
        return _text(lines)
    tops = list(leaves)
    if 1 < len(groups) < len(leaves):
        tops = [f"waystage-group{number}" for number in range(1, len(groups) + 1)]
        lines += [
            f"SwitchName={top} Switches={','.join(members)}"
            for top, members in zip(tops, groups.values(), strict=True)
        ]
    lines.append(f"SwitchName=waystage-top Switches={','.join(tops)}")
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
