"""A site at the far end of an emulated wide-area path, reached from a lab's Slurm.

Arrives: a lab whose Slurm is up, the profile of a path.
Leaves: a namespace behind the path that slurmctld's host and every node can reach, with a Gfarm if wanted; afterwards
nothing.
Must not know: what moves, or who uses it.

The path's near end is joined to the management network's router, the namespace of slurmctld: traffic to the far site is
the site's border traffic, and loads no link of the fabric. The lab keeps the name of the path, and takes it down.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from waystage.outputs import write_whole
from waystage.worlds.lab import gfarm
from waystage.worlds.lab.commands import run
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.resources import SLURM_CONTROLLER, Far
from waystage.worlds.lab.slurm import LabSlurm
from waystage.worlds.lab.slurm_conf import MANAGEMENT, management_address
from waystage.worlds.lab.wan import paths
from waystage.worlds.lab.wan.profile import Profile

FAR_ADDRESS = paths.IPV4["right"]
GFARM_ADDRESSES = ("10.58.0.18", "10.58.0.19")
"""Filesystem nodes of a Gfarm at the far end; the metadata server is beside the first."""

_GFARM_ROUTER, _GFARM_BITS = "10.58.0.17", 28

_NEAR, _ROUTER, _JOINT = "10.60.0.2", "10.60.0.1", "10.60.0.0/30"
_FAR_NET, _FAR_HOSTS = "10.58.0.0/24", "10.58.0.0/28"
_DEVICE = "far0"


class FarSite:
    """A context manager, or `up`, after which the lab takes it down. Raises LabError, also where such a path is up."""

    def __init__(self, lab: Lab, profile: Profile) -> None:
        self._lab, self._profile = lab, profile
        self.name = f"{lab.name[:13]}far"

    def up(self) -> None:
        """Bring it up, or raise and leave nothing."""
        paths.up(self.name, self._profile)
        try:
            self._join()
            record = Far(path=self.name, profile=self._profile.name)
            write_whole(self._lab.resources.far, msgspec.json.encode(record))
        except BaseException:
            paths.down(self.name)
            raise

    def start_gfarm(self) -> None:
        """Start a Gfarm of two filesystem nodes at the far end, and mount it twice. Raises MissingProgram, LabError.

        The client for `folders.far_gfarm` is in slurmctld's namespace, at the near end; the one for
        `folders.far_gfarm_there`, which a server of copies there would serve, is beside the Gfarm.
        """
        folders = LabSlurm(self._lab).folders
        namespace = self._join_gfarm()
        nodes = [gfarm.FileNode(address, namespace) for address in GFARM_ADDRESSES]
        made = gfarm.start(folders.gfarm, nodes)
        near = self._lab.resources.namespace(SLURM_CONTROLLER)
        try:
            for point, within in ((folders.far_gfarm, near), (folders.far_gfarm_there, namespace)):
                point.mkdir()
                gfarm.mount(made, point, within, shared=True)
        except BaseException:
            gfarm.stop(folders.gfarm)
            raise

    def __enter__(self) -> FarSite:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        paths.down(self.name)  # the joint goes with its namespaces
        self._lab.resources.far.unlink(missing_ok=True)

    def start(self, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a program at the far end."""
        return paths.start(self.name, "right", argv, **popen)

    def _join(self) -> None:
        lab = self._lab.resources
        near = paths.find(self.name).namespace("left")
        router = lab.namespace(SLURM_CONTROLLER)
        run(
            ["ip", "-n", router, "-batch", "-"],
            text_in=f"link add {_DEVICE} type veth peer name {_DEVICE} netns {near}\n"
            f"addr add {_ROUTER}/30 dev {_DEVICE}\nlink set {_DEVICE} up\n"
            f"route add {_FAR_NET} via {_NEAR}\n",
            check=True,
        )
        run(
            ["ip", "-n", near, "-batch", "-"],
            text_in=f"addr add {_NEAR}/30 dev {_DEVICE}\nlink set {_DEVICE} up\n"
            f"route add {MANAGEMENT} via {_ROUTER}\n",
        )
        for enter in ([*lab.enter_slurm()], paths.enter(self.name, "left")):
            run([*enter, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        run([*paths.enter(self.name, "right"), "ip", "route", "replace", "default", "dev", "wan0"])
        for host in self._lab.topology.hosts:
            run(
                ["ip", "-n", lab.namespace(host.name), "route", "add", _FAR_NET, "via", management_address(0)]
            )

    def _join_gfarm(self) -> str:
        """The namespace of the Gfarm's hosts, behind the far end: clients of Gfarm 2.7 crash beside a tun device."""
        namespace, there = self._lab.resources.namespace("fargfarm"), paths.find(self.name).namespace("right")
        run(["ip", "netns", "add", namespace])
        addresses = "".join(f"addr add {each}/{_GFARM_BITS} dev gf0\n" for each in GFARM_ADDRESSES)
        batch = (
            f"link set lo up\nlink add gf0 type veth peer name gf0 netns {there}\n{addresses}"
            "link set gf0 up\n"
            # No default route: a name server that does not answer would hold each command of Gfarm up for seconds.
            + "".join(f"route add {net} via {_GFARM_ROUTER}\n" for net in (_FAR_HOSTS, MANAGEMENT, _JOINT))
        )
        run(["ip", "-n", namespace, "-batch", "-"], text_in=batch)
        batch = f"addr add {_GFARM_ROUTER}/{_GFARM_BITS} dev gf0\nlink set gf0 up\n"
        run(["ip", "-n", there, "-batch", "-"], text_in=batch)
        run([*paths.enter(self.name, "right"), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        left = paths.find(self.name).namespace("left")
        run(["ip", "-n", left, "route", "replace", _FAR_NET, "via", FAR_ADDRESS, "dev", "wan0"])
        return namespace
