"""The build backend (PEP 517) of the sources and of a clone: maturin, and what maturin does not build.

Arrives: a tree with these sources, as `make dist` packs it or git clones it.
Leaves: a wheel which has besides the compiled module libwaystage_io.so, the licences of its crates, and the pages,
experiments and units that messages name. Man pages are in it where `make dist` wrote them before: they are made by the
installed command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "python" / "waystage" / "data"
MAN_PAGES = ROOT / "waystage._native.data" / "data" / "share" / "man" / "man1"
NOTICES = DATA / "third-party-notices.txt"

SHIPPED = ("deploy", "docs", "experiments")
"""Folders of the repository that the wheel has below `data/`: waystage.shipped finds them."""

Settings = dict[str, object] | None


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _library()
    if not NOTICES.exists():
        _run(sys.executable, str(ROOT / "scripts" / "write_notices.py"), str(NOTICES))
    try:
        _copy()
        return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))
    finally:
        _remove()


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _library()
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    if not (MAN_PAGES.is_dir() and NOTICES.is_file()):
        sys.exit(
            "waystage: the man pages and licences that the sources contain are not written: run 'make dist'."
        )
    return str(maturin.build_sdist(sdist_directory, config_settings))


def _library() -> None:
    _run("bash", str(ROOT / "scripts" / "library"))


def _run(*command: str) -> None:
    cargo = Path.home() / ".cargo" / "bin"
    env = os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:{cargo}"}
    subprocess.run(command, check=True, cwd=ROOT, env=env)


def _copy() -> None:
    """In a copy: not every transport of a repository keeps links."""
    for name in SHIPPED:
        shutil.rmtree(DATA / name, ignore_errors=True)
        shutil.copytree(ROOT / name, DATA / name)


def _remove() -> None:
    """A clone has one copy of each page: the one that is edited."""
    for name in SHIPPED:
        shutil.rmtree(DATA / name, ignore_errors=True)
