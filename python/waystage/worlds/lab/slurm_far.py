"""A site at the far end of an emulated wide-area path, reached from a lab's Slurm.

Arrives: a lab whose Slurm is up, the profile of a path.
Leaves: a namespace behind the path that slurmctld's host and every node can reach; afterwards nothing.
Must not know: what runs at the far end, what moves.

The path's near end is joined to the management network's router, the namespace of slurmctld: traffic to the far site is
the site's border traffic, and loads no link of the fabric.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from waystage.worlds.lab.commands import run
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.resources import SLURM_CONTROLLER
from waystage.worlds.lab.slurm_conf import MANAGEMENT, management_address
from waystage.worlds.lab.wan import paths
from waystage.worlds.lab.wan.profile import Profile

FAR_ADDRESS = paths.IPV4["right"]
_NEAR, _ROUTER = "10.60.0.2", "10.60.0.1"
_FAR_NET = "10.58.0.0/24"
_DEVICE = "far0"


class FarSite:
    """A context manager. Raises LabError, also where a path of this name is up."""

    def __init__(self, lab: Lab, profile: Profile) -> None:
        self._lab, self._profile = lab, profile
        self.name = f"{lab.name[:13]}far"

    def __enter__(self) -> FarSite:
        paths.up(self.name, self._profile)
        try:
            self._join()
        except BaseException:
            paths.down(self.name)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        paths.down(self.name)  # the joint goes with its namespaces

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
