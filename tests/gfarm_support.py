"""A Gfarm on loopback for tests, skipped with a reason where it cannot be started."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from waystage.worlds.lab import gfarm
from waystage.worlds.lab.gfarm import FileNode, Gfarm

NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
OTHER = ("127.0.1.1",)
"""For a second Gfarm beside the first."""


@contextmanager
def started(nodes: tuple[str, ...] = NODES, **options: Any) -> Iterator[Gfarm]:
    """A Gfarm with a node at each of these addresses."""
    reason = gfarm.missing()
    if reason is not None:
        pytest.skip(reason)
    metadata = (nodes[0], options.get("port", gfarm.METADATA_PORT))
    for place in (metadata, *((address, gfarm.NODE_PORT) for address in nodes)):
        with socket.socket() as probe:
            if probe.connect_ex(place) == 0:
                pytest.skip(f"{place[0]}:{place[1]} is taken: another Gfarm runs here")
    # Not below pytest's own folder, which gfsd's account cannot enter.
    with tempfile.TemporaryDirectory(prefix="waystage-gfarm-") as name:
        os.chmod(name, 0o755)
        with gfarm.running(Path(name) / "g", [FileNode(address) for address in nodes], **options) as made:
            yield made
