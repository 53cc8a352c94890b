"""A server's site in a scratch folder; whatever it started has ended afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_copy_support import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder)
    yield site
    site.close()
