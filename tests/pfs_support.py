"""What the tests of the emulated file system share: a shape of quick servers, programs, what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ran
from waystage._native import read_layout
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs import Mounted

Mount = Callable[..., Mounted]
"""`mount(yaml, folder=...)` mounts on `point` and returns the mount."""

FAST = """
targets: {count: 4, read_per_s: 1 GB, write_per_s: 1 GB, latency_ms: 1, slowdown: [[1, 1], [4, 4]]}
metadata:
  servers: 2
  messages_per_s: 100000
  latency_ms: {lookup: 0.1, open: 0.3, close: 0.1, layout: 0.1, readdir: 0.1, change: 0.1, glimpse: 0.1}
"""
"""Servers that keep no test waiting."""

MADE_UP = "tree: {files: 25, size: 300 kB, files_per_directory: 10}\n"


def run(*command: str | Path) -> str:
    return ran(command).expect().out


def counted(made: Mounted) -> dict[str, int]:
    """Messages of all metadata servers, by kind."""
    total: Counter[str] = Counter()
    for server in pfs.statistics(made)["metadata"]:
        total.update({k: v for k, v in server.items() if isinstance(v, int) and k != "server"})
    return dict(total)


def busy(made: Mounted) -> list[dict[str, Any]]:
    return [target for target in pfs.statistics(made)["targets"] if target["requests"]]


def targets_of(path: Path) -> list[str]:
    """The storage targets of a file, by its layout."""
    layout = read_layout(path)
    assert layout is not None
    return [o["target"] for c in layout["components"] for o in c["objects"]]
