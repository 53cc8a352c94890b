"""A server, and proxies that reach destinations on this host through it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy_support import Proxies


@pytest.fixture
def proxies(tmp_path: Path) -> Iterator[Proxies]:
    site = Proxies(tmp_path)
    yield site
    site.close()
