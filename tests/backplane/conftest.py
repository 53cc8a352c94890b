"""Endpoints that no other process uses."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness


@pytest.fixture
def free_port() -> int:
    return harness.free_port()


@pytest.fixture
def unix_endpoint(tmp_path: Path) -> str:
    return f"unixsock-stream/{tmp_path}/b.sock"
