"""A copy from slow storage is limited by its source, one to slow storage by its destination."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pacing_support import is_limited_by, until_moving
from pfs_support import Mount
from waystage._native import TreeCopy
from waystage.native_options.copies import TreeCopyOptions

pytestmark = pytest.mark.lab

SLOW = """
targets: {count: 2, read_per_s: 8 MB, write_per_s: 8 MB, latency_ms: 1, slowdown: [[1, 1], [4, 4]]}
metadata:
  servers: 1
  messages_per_s: 100000
  latency_ms: {lookup: 0.1, open: 0.3, close: 0.1, layout: 0.1, readdir: 0.1, change: 0.1, glimpse: 0.1}
"""


@pytest.mark.parametrize("slow", ["source", "destination"])
def test_the_slow_end_is_named(mount: Mount, point: Path, tmp_path: Path, slow: str) -> None:
    behind, near = tmp_path / "behind", tmp_path / "near"
    (near if slow == "destination" else behind).mkdir()
    behind.mkdir(exist_ok=True)
    for number in range(4):
        ((near if slow == "destination" else behind) / f"{number}").write_bytes(os.urandom(24_000_000))
    mount(SLOW, folder=behind)
    ends = (near, point / "copy") if slow == "destination" else (point, near)
    with TreeCopy(*ends, TreeCopyOptions(workers=2)) as copy:
        until_moving(copy)
        # On a busy machine another wait may be the largest in one interval, but not in all of them.
        assert is_limited_by(copy, slow, 0.5)
