"""The resources of a lab on this machine (namespaces, directories, sockets), and their removal.

Arrives: a lab's name.
Leaves: paths and command prefixes; a machine without a trace of the lab.
Must not know: topologies, switches.

Everything is named after the lab, so that any process can find and remove it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec

from waystage.worlds.lab.commands import mark, program, run
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.processes import end_all, in_namespaces, own_children

RUN_ROOT = Path("/run/ws-lab")
"""Root's alone: /run/waystage belongs to the user of a site's controller. Short, since socket paths are."""

NETNS_ROOT = Path("/run/netns")
END_GRACE_S = 1.5
UNMOUNT_ROUNDS = 10

SLURM_CONTROLLER = "slurmctl"
"""Namespace and host name of slurmctld and munged."""

FAR_SITE = "far"
"""Name of the far end of a lab's wide-area path, for `waystage lab exec`."""

# No '-': it separates the lab's name from the host's in namespace names. Length: a unix socket's path
# has at most 107 bytes, and a host's name up to 63 of them.
_NAME = re.compile(r"^[A-Za-z0-9_]{1,16}$")


class Far(msgspec.Struct, frozen=True, kw_only=True):
    """The site at the far end of a wide-area path: the path's name and profile."""

    path: str
    profile: str

    @classmethod
    def read(cls, file: Path) -> Far | None:
        """None where the lab has none."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None


class LabResources:
    def __init__(self, name: str) -> None:
        if not _NAME.match(name):
            raise LabError(f"lab name {ascii(name)[:40]}: use 1 to 16 letters, digits or '_'")
        self.name = name
        self.run_dir = RUN_ROOT / name
        self.lock = RUN_ROOT / f"{name}.lock"
        self.owner = self.run_dir / "owner.json"
        self.daemons = self.run_dir / "daemons.json"
        self.topology = self.run_dir / "topology.graphml"
        self.ovs = self.run_dir / "ovs"
        self.lldp = self.run_dir / "lldp"
        self.uts = self.run_dir / "uts"
        self.controller = self.run_dir / "controller"
        self.slurm = self.run_dir / "slurm"
        self.far = self.run_dir / "far.json"
        self.slurm_conf = self.slurm / "etc" / "slurm.conf"
        self.fabric = f"ws-{name}-fabric"

    def namespace(self, host: str) -> str:
        return f"ws-{self.name}-{host}"

    def host_dir(self, host: str) -> Path:
        return self.run_dir / "hosts" / host

    def enter_fabric(self) -> list[str]:
        return [program("nsenter"), f"--net={NETNS_ROOT / self.fabric}", "--"]

    def enter_host(self, host: str) -> list[str]:
        """Network namespace and host name; costs one exec."""
        net = f"--net={NETNS_ROOT / self.namespace(host)}"
        return [program("nsenter"), net, f"--uts={self.uts / host}", "--"]

    def enter_slurm(self) -> list[str]:
        """Network namespace and host name of slurmctld."""
        return self.enter_host(SLURM_CONTROLLER)

    def namespace_files(self) -> list[Path]:
        return sorted(NETNS_ROOT.glob(f"ws-{self.name}-*"))

    @property
    def anything_left(self) -> bool:
        return self.run_dir.exists() or bool(self.namespace_files())

    def remove_all(self, *, unmount_netns: bool) -> None:
        """End what runs in the namespaces, then remove them, the mounts and the run directory.

        Goes on where one step fails, and raises LabError for the first failure at the end.
        """
        failures: list[str] = []
        # A tool that was interrupted as it began is in no namespace yet, and would enter one later.
        stuck = end_all(lambda: [*own_children(mark()), *in_namespaces(self.namespace_files())], END_GRACE_S)
        if stuck:
            failures.append(f"process {stuck[0]} does not end")
        batch = "".join(f"netns del {file.name}\n" for file in self.namespace_files())
        if batch:
            try:
                run(["ip", "-force", "-batch", "-"], text_in=batch)
            except LabError as error:
                failures.append(str(error))
        # While others mount and unmount, the kernel's list can leave out entries: look until none is left.
        for _ in range(UNMOUNT_ROUNDS):
            mounts = self._mounts()
            if not mounts:
                shutil.rmtree(self.run_dir, ignore_errors=True)
                if not self.run_dir.exists():
                    break
            problems: list[str] = []
            for mount in mounts:
                try:
                    run(["umount", "--lazy", str(mount)])
                except LabError as error:
                    problems.append(str(error))
        else:
            failures += problems or [f"{self.run_dir} cannot be removed"]
        if unmount_netns and NETNS_ROOT.is_dir() and not any(NETNS_ROOT.iterdir()):
            run(["umount", str(NETNS_ROOT)], check=False)
        if failures:
            raise LabError(f"lab '{self.name}' could not be taken down completely: {failures[0]}")

    def _mounts(self) -> list[Path]:
        """What is mounted in the run directory, innermost first."""
        found = []
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            at = Path(line.split()[4].encode().decode("unicode_escape"))
            if at.is_relative_to(self.run_dir):
                found.append(at)
        return sorted(found, key=lambda path: len(path.parts), reverse=True)


def netns_is_mounted() -> bool:
    return os.path.ismount(NETNS_ROOT)
