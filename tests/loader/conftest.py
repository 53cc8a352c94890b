"""Trees to load."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from waystage.catalog import build

Contents = dict[str, bytes]


@pytest.fixture
def contents() -> Contents:
    """Paths and bytes: small and empty files, one of many pieces, names that are hard to write."""
    draw = random.Random(4)
    made = {f"d{n % 3}/f{n:03d}": draw.randbytes(draw.randrange(3000)) for n in range(60)}
    return made | {"large": draw.randbytes(300_000), "empty": b"", "d0/new\nline\udcff": b"odd"}


@pytest.fixture
def tree(tmp_path: Path, contents: Contents) -> Path:
    root = tmp_path / "tree"
    for path, data in contents.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (root / "link").symlink_to("large")
    return root


@pytest.fixture
def catalog(tree: Path, tmp_path: Path) -> Path:
    path = tmp_path / "catalog"
    build(tree, path)
    return path


@pytest.fixture
def joined() -> Callable[[list[tuple[str, int, memoryview]]], Contents]:
    """Files put together from their pieces; every byte once."""

    def join(pieces: list[tuple[str, int, memoryview]]) -> Contents:
        files: dict[str, bytearray] = {}
        for path, offset, data in sorted(pieces, key=lambda piece: piece[:2]):
            held = files.setdefault(path, bytearray())
            assert len(held) == offset, f"{path} has a gap or an overlap at {offset}"
            held += data
        return {path: bytes(held) for path, held in files.items()}

    return join
