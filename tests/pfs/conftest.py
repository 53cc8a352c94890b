"""Mounts of emulated file systems that are gone after each test, whatever it did to them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfs_support import FAST, MADE_UP, Mount
from waystage.worlds.lab import pfs
from waystage.worlds.lab.pfs import Mounted, mounts


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    """An empty directory; whatever is mounted there is taken away."""
    place = tmp_path / "point"
    place.mkdir()
    yield place
    for made in pfs.mounted():
        if made.point == str(place):
            pfs.unmount(place, force=True)
    while mounts.is_mounted(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def mount(point: Path, tmp_path: Path) -> Mount:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse to mount with")

    def mounted(yaml: str = FAST + MADE_UP, **options: Any) -> Mounted:
        file = tmp_path / "shape.yaml"
        file.write_text(yaml)
        return pfs.mount(point, pfs.load(file), **options)

    return mounted
