"""Pages in Debian's chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 60_000

needs_browser = pytest.mark.skipif(
    not CHROMIUM.exists(), reason="no chromium: `scripts/packages tests` installs it"
)


@contextmanager
def opened(browser: Any, link: str, **options: Any) -> Iterator[Any]:
    """A page on which no error may occur."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(link)
    yield page
    context.close()
    assert [text for text in wrong if "Failed to load resource" not in text and "ERR_" not in text] == []


def rgb(colour: str) -> str:
    return "rgb({},{},{})".format(*(int(colour[at : at + 2], 16) for at in (1, 3, 5)))
