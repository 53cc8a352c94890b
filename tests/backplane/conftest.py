"""Endpoints that no other process uses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def unix_endpoint(tmp_path: Path) -> str:
    return f"unixsock-stream/{tmp_path}/b.sock"
