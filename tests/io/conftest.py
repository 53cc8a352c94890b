"""A node for tests whose process is a rank of both applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coupling_support import Node, node


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node, whose ranks this test's process is too."""
    with node(tmp_path) as found:
        for key, value in found.environment.items():
            monkeypatch.setenv(key, value)
        yield found
