"""A site controller in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystage.backplane import BackplaneConfig
from waystage.controllers import site


@contextmanager
def running_site(folder: Path) -> Iterator[site.Site]:
    """One with its state in `folder`, which listens at `folder`/b.sock."""
    config = site.SiteConfig(
        state_dir=str(folder / "state"),
        backplane=BackplaneConfig(name="global", listen=(f"unixsock-stream/{folder}/b.sock",)),
        sync="normal",
    )
    running = site.start(config)
    try:
        yield running
    finally:
        running.close()
