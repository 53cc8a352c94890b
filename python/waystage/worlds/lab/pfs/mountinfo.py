"""What is mounted where, from the kernel's list: a file system that does not answer is found too.

Arrives: a mount point.
Leaves: whether one of ours is mounted there.
Must not know: who mounted it.
"""

from __future__ import annotations

import time
from pathlib import Path

SOURCE = "waystage-pfs:"
"""How the source of each of our mounts begins, as `mount` shows it; the shape's name follows."""


READS = 5
PAUSE_S = 0.01
"""While others mount and unmount, the list can leave out entries: only what is missing each time is not there."""


def is_mounted(point: Path) -> bool:
    """Whether one of ours is mounted there, as this process sees it."""
    for attempt in range(READS):
        if attempt:
            time.sleep(PAUSE_S)
        if _listed(str(point)):
            return True
    return False


def _listed(point: str) -> bool:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in text.splitlines():
        fields = line.split(" ")
        source = fields[fields.index("-") + 2]
        if source.startswith(SOURCE) and _unescaped(fields[4]) == point:
            return True
    return False


def _unescaped(path: str) -> str:
    """A path of mountinfo, in which blanks, tabs, newlines and backslashes are octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
