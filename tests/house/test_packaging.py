"""The wheel's declaration: versions agree, dependencies are locked and used, scripts are sound."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import waystage
from waystage import _native

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

IMPORT_NAMES = {
    "dask-jobqueue": "dask_jobqueue",
    "eclipse-zenoh": "zenoh",
    "os-ken": "os_ken",
    "ruamel-yaml": "ruamel",
}
"""Where a distribution's import name is not its own."""


def normal(requirement: str) -> str:
    """PEP 503: `Ruamel.YAML>=0.18` -> `ruamel-yaml`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement)[0]).lower()


def test_there_is_one_version() -> None:
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))
    assert waystage.__version__ == _native.__version__ == cargo["workspace"]["package"]["version"]
    assert version("waystage") == waystage.__version__


def test_the_command_is_installed() -> None:
    [command] = [e for e in entry_points(group="console_scripts") if e.name == "waystage"]
    assert command.value == "waystage.cli.main:main"


def test_every_dependency_is_locked_with_the_hashes_of_its_files() -> None:
    text = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    pins = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace(" \\\n", " ").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", pin) for pin in pins), (
        "only exact versions and their hashes, from anywhere"
    )
    locked = {normal(pin) for pin in pins}
    extras = PROJECT["optional-dependencies"]
    wanted = {
        normal(r)
        for r in (
            *PROJECT["dependencies"],
            *extras["dev"],
            *extras["nodes"],
            *extras["frames"],
            *extras["fsspec"],
        )
    }
    assert wanted <= locked


def test_every_dependency_is_used_and_every_use_declared() -> None:
    used: set[str] = set()
    for path in (REPOSITORY / "python").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used.add((node.module or "").split(".")[0])
    declared = {IMPORT_NAMES.get(n, n) for n in map(normal, PROJECT["dependencies"])}
    import sys

    foreign = used - set(sys.stdlib_module_names) - {"waystage"}
    extras = PROJECT["optional-dependencies"]
    optional = {
        IMPORT_NAMES.get(n, n) for group in extras if group != "dev" for n in map(normal, extras[group])
    }
    assert declared <= foreign <= declared | optional


def test_crates_and_wheel_carry_the_licence() -> None:
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == {"text": "Apache-2.0"}


@pytest.fixture
def scratch_copy(tmp_path: Path) -> Path:
    """The tracked scripts and manifests in a separate directory, as a clone has them."""
    copy = tmp_path / "clone"
    shutil.copytree(REPOSITORY / "scripts", copy / "scripts")
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "Cargo.toml", "Cargo.lock"):
        shutil.copy(REPOSITORY / name, copy)
    (copy / "crates").mkdir()
    return copy


def test_a_user_without_root_sees_the_packages_in_one_sentence(scratch_copy: Path, tmp_path: Path) -> None:
    """An empty PATH but for what the script itself needs: everything is missing, and there is no root."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in ("bash", "env"):
        (bin_dir / tool).symlink_to(shutil.which(tool) or "/bin/false")
    (bin_dir / "id").write_text("#!/bin/sh\necho 1000\n")
    (bin_dir / "apt-get").write_text("#!/bin/sh\nexit 99\n")
    for tool in ("id", "apt-get"):
        (bin_dir / tool).chmod(0o755)
    script = (scratch_copy / "scripts/packages").read_text(encoding="utf-8")
    only_here = script.replace(':/usr/sbin:/sbin"', '"')
    assert only_here != script
    (scratch_copy / "scripts/packages").write_text(only_here, encoding="utf-8")
    ran = subprocess.run(
        [str(scratch_copy / "scripts/packages")],
        env={"PATH": str(bin_dir), "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4
    assert ran.stderr.count("\n") == 1
    for package in ("openvswitch-switch", "openmpi-bin", "libopenmpi-dev", "lldpd", "python3-venv"):
        assert ran.stderr.count(f" {package}") == 1


def test_an_old_python_is_named_before_anything_is_made(scratch_copy: Path, tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ran = subprocess.run(
        ["scripts/venv"],
        cwd=scratch_copy,
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4 and "Python 3.11" in ran.stderr
    assert not (scratch_copy / ".venv").exists()


def test_the_notices_have_the_licence_of_every_linked_crate() -> None:
    writer = runpy.run_path(str(REPOSITORY / "scripts/write_notices.py"))
    text = writer["notices"]()
    crates = re.findall(r"^(\S+) \d[^:\n]*: ", text, re.MULTILINE)
    assert {"rustls", "pyo3", "quinn-proto", "libc"} & set(crates) >= {"rustls", "pyo3", "libc"}
    assert not any(name.startswith("waystage") for name in crates)
    assert not {"proptest", "trybuild"} & set(crates), "crates of tests are not linked"
    assert "Apache License" in text and "Permission is hereby granted" in text
