"""An LLDP daemon on every host, so that the controller can find out what is plugged in where.

Arrives: a lab whose hosts have their devices up.
Leaves: one lldpd (https://lldpd.github.io) a host, announcing the host's name and address.
Must not know: who listens.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from waystage.worlds.lab.commands import program
from waystage.worlds.lab.wiring import HOST_DEVICE

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

TX_INTERVAL_S = 5
"""IEEE 802.1AB recommends 30 s; a controller that starts after the hosts should not wait that long."""


def start_lldp(lab: Lab) -> dict[str, subprocess.Popen[Any]]:
    """Start all daemons, by host; they announce themselves as soon as they have read their configuration."""
    daemons = {}
    for host in lab.topology.hosts:
        base = lab.resources.lldp / host.name
        config = base.with_name(f"{host.name}.conf")
        config.write_text(
            f"configure system hostname {host.name}\n"
            f"configure system ip management pattern {host.ip}\n"
            f"configure lldp tx-interval {TX_INTERVAL_S}\n"
            "resume\n",
            encoding="utf-8",
        )
        with base.with_name(f"{host.name}.log").open("wb") as log:
            daemons[host.name] = lab.exec(
                host.name,
                [
                    program("lldpd"),
                    "-d",
                    "-k",
                    *("-I", HOST_DEVICE, "-C", HOST_DEVICE, "-S", "Waystage lab"),
                    *("-u", f"{base}.socket", "-O", str(config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
    return daemons
