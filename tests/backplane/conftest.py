"""Backplanes, and endpoints that no other process uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import harness
from waystage.backplane import Backplane, BackplaneConfig


@pytest.fixture
def free_port() -> int:
    return harness.free_port()


@pytest.fixture
def unix_endpoint(tmp_path: Path) -> str:
    return f"unixsock-stream/{tmp_path}/b.sock"


@pytest.fixture
def alone() -> Iterator[Backplane]:
    with Backplane.open() as backplane:
        yield backplane


@pytest.fixture
def router(unix_endpoint: str) -> Iterator[Backplane]:
    with Backplane.open(BackplaneConfig(name="router", listen=(unix_endpoint,))) as backplane:
        yield backplane
