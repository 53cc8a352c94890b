"""A server, and proxies that reach destinations on this host through it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy_support import FAR, Proxies, does
from waystage.worlds.lab import wan
from waystage.worlds.lab.wan import paths


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    site = Proxies(tmp_path)
    yield site
    site.close()


@pytest.fixture
def path() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    name = f"p{os.getpid()}"
    paths.up(name, wan.Profile(both=wan.said({"delay": "1ms"})))
    try:
        assert does(name, "right", "ip", "addr", "add", f"{FAR}/32", "dev", "lo")[0] == 0
        yield name
    finally:
        wan.down(name)
