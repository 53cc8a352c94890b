"""What tests of copies share."""

from __future__ import annotations

from pathlib import Path

import pytest

from copying_trees import make_everything


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    make_everything(root)
    return root
