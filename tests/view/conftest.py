"""A site to look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from view_support import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o700)
    found = Site(folder)
    yield found
    found.close()
