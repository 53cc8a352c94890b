"""Programs that change files, compiled once, and a tree for them with its catalog."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from recorder_support import PROGRAMS
from waystage.catalog import build as build_catalog


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: install gcc")
    folder = tmp_path_factory.mktemp("programs")

    def compile_once(name: str) -> str:
        binary = folder / name
        if not binary.exists():
            source = str(PROGRAMS / f"{name}.c")
            command = [compiler, "-std=c11", "-O1", "-o", str(binary), source, "-lpthread"]
            subprocess.run(command, check=True, timeout=150)
        return str(binary)

    return compile_once


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What shim/tests/calls.c finds."""
    top = tmp_path / "tree"
    (top / "d" / "e").mkdir(parents=True)
    (top / "z").mkdir()
    for name in ("a", "b", "h", "d/x", "d/e/y"):
        (top / name).write_bytes(b"before, " + name.encode())
    (top / "l").symlink_to("a")
    (top / "m").symlink_to("d")
    os.link(top / "h", top / "d" / "h2")
    return top


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "tree.catalog"


@pytest.fixture
def catalogued(tree: Path, target: Path) -> Path:
    """The catalog of the tree."""
    build_catalog(tree, target)
    return target
