"""The controller of a lab: `waystage controller`, beside the switches.

Arrives: a lab that is up, the name of a policy.
Leaves: a controller process in the fabric namespace, and switches that hold its rules.
Must not know: what the policy does, how rules are made.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.worlds.lab.errors import LabError

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

READY_TIMEOUT_S = 120.0
"""Far above the second that it takes: other programs may have the machine."""

_POLL_S = 0.1


def start_controller(lab: Lab, policy: str, extra: Sequence[str] = ()) -> subprocess.Popen[Any]:
    """Start `waystage controller` and wait until every switch is connected and holds rules. Raises LabError."""
    log = lab.resources.controller / "controller.log"
    argv = [sys.executable, "-m", "waystage", "controller"]
    argv += ["--topology", str(lab.topology_file), "--policy", policy]
    argv += ["--openflow", lab.controller_listen, "--listen", lab.backplane_endpoint]
    argv += ["--state-dir", str(lab.resources.controller), *extra]
    with log.open("wb") as output:
        process = lab.fabric_exec(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        lab.watch("the controller", process, log)
        _wait_ready(lab, process, log)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def switches_connected(lab: Lab) -> dict[str, bool]:
    """switch -> whether a controller is connected to it."""
    text = lab.switches.vsctl(
        "--format=csv", "--no-headings", "--columns=target,is_connected", "list", "controller"
    )
    found = len(text.splitlines()), text.count(",true")
    if found[0] == found[1]:
        return dict.fromkeys(lab.wiring.bridges, True)
    return {
        switch: "true" in lab.switches.vsctl("--if-exists", "get", "controller", bridge, "is_connected")
        for switch, bridge in lab.wiring.bridges.items()
    }


def _wait_ready(lab: Lab, process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    empty = list(lab.wiring.bridges)
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LabError(f"the controller ended at once: {last_words(log)}")
        if all(switches_connected(lab).values()):
            empty = [s for s in empty if "flow_count=0" in lab.ofctl("dump-aggregate", s)]
            if not empty:
                return
        time.sleep(_POLL_S)
    raise LabError(
        f"after {READY_TIMEOUT_S:.0f} s the controller has given no rules to {', '.join(empty)}: see {log}"
    )


def last_words(log: Path) -> str:
    """The beginning of the last line of a controller's log, which says what is wrong, for an error."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return (
        lines[-1].strip().removeprefix("waystage: error: ")[:300] if lines else f"it said nothing (see {log})"
    )
