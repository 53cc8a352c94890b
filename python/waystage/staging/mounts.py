"""The pair of ends that a rate is measured for: file systems by their mount point, far ends by host.

Arrives: a submission, or two ends.
Leaves: one line of text.
Must not know: rates.
"""

from __future__ import annotations

import os

from waystage.display import display
from waystage.staging.requests import Submission
from waystage.wan.address import parse_remote

MOUNTS = "/proc/self/mountinfo"
"""proc_pid_mountinfo(5): the third field is the device, the fifth the mount point."""


def pair_of(asked: Submission) -> str:
    """`SOURCE -> DESTINATION`, e.g. `/scratch (lustre) -> login1`."""
    local = "local to its nodes"
    if asked.node_local and asked.direction == "out":
        return f"{local} -> {_end(asked.destination)}"
    to = local if asked.node_local else _end(asked.destination)
    return f"{_end(asked.source)} -> {to}"


def between(source: str, destination: str) -> str:
    """As `pair_of`, of a copy from `source` to `destination`."""
    return f"{_end(source)} -> {_end(destination)}"


def _end(text: str) -> str:
    far = parse_remote(text)
    return file_system(text) if far is None else display(far.host)


def file_system(path: str) -> str:
    """Mount point and type of the file system that `path`, or what exists above it, is in."""
    path = os.path.join(os.getcwd(), path)
    while True:
        try:
            device = os.stat(path).st_dev
            break
        except OSError:
            if path in ("/", ""):
                return "unknown"
            path = os.path.dirname(path.rstrip("/"))
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) > 4 and words[2] == wanted:
                    kind = words[words.index("-") + 1] if "-" in words[:-1] else "?"
                    return f"{words[4]} ({kind})"
    except OSError:
        pass
    return f"device {wanted}"
