"""Loss on a cable between two switches of a lab.

Arrives: a lab that is up, two switches, the share of packets to lose.
Leaves: a filter at both ends that drops packets at random, until the lab ends.
Must not know: what is measured.

The filter is a classic BPF program of four instructions (cls_bpf, direct action): the random number of the kernel below
a threshold drops. No netem is needed, and the queue of the port stays as it is.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from waystage.worlds.lab.commands import program
from waystage.worlds.lab.errors import LabError

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_PASS, _DROP = 0, 2  # TC_ACT_OK, TC_ACT_SHOT


def lose(lab: Lab, a: str, b: str, share: float) -> None:
    """Drop `share` of the packets between switches `a` and `b`, each way. Raises LabError."""
    devices = [
        end.device for wire in lab.wiring.wires if {e.node for e in wire.ends} == {a, b} for end in wire.ends
    ]
    if not devices or not 0 <= share < 1:
        raise LabError(f"no cable between {a} and {b}, or {share} is no share below 1")
    threshold = int(share * (1 << 32))
    code = f"4,32 0 0 {_RANDOM},53 0 1 {threshold},6 0 0 {_PASS},6 0 0 {_DROP}"
    for device in devices:
        for words in (
            ["qdisc", "add", "dev", device, "clsact"],
            ["filter", "add", "dev", device, "egress", "bpf", "da", "bytecode", code],
        ):
            command = ["ip", "netns", "exec", lab.resources.fabric, program("tc"), *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise LabError(f"tc {' '.join(words)}: {done.stderr.strip()}")
