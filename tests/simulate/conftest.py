"""A sweep in a scratch folder, with its topology beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulate_support import SMALL
from waystage.interconnect.generate import leaf_spine
from waystage.interconnect.graphml import write_topology


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Path]:
    """Writes a sweep beside a topology of 8 hosts; pairs of texts are replaced in it."""
    write_topology(leaf_spine(2, 4, 2, storage_hosts=0), tmp_path / "small.graphml")

    def write(*changes: tuple[str, str], text: str = SMALL) -> Path:
        for old, new in changes:
            assert old in text, f"{old!r} is not in the sweep"
            text = text.replace(old, new)
        path = tmp_path / "small.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
