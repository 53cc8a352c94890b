"""A site to look at, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser_support import CHROMIUM
from view_support import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o700)
    found = Site(folder)
    yield found
    found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # chromium has no sandbox for root, as whom CI runs.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()
