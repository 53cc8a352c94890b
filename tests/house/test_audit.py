"""`make audit`: says which advisories it went by, or that there were none, and what that means for its exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CRATES: dict[str, Any] = {
    "database": {"advisory-count": 812, "last-commit": "abc123", "last-updated": "2026-11-01"},
    "vulnerabilities": {"list": []},
}
FLAWED = {
    "package": {"name": "some", "version": "1.0"},
    "advisory": {"id": "RUSTSEC-1", "title": "reads too far"},
}
PYTHON: dict[str, Any] = {"dependencies": [{"name": "click", "version": "8", "vulns": []}]}
HIT = {"name": "lxml", "version": "6", "vulns": [{"id": "PYSEC-1", "fix_versions": ["7"]}]}


def _audit(repository: Path, folder: Path, crates: object, python: object) -> tuple[int, str]:
    """Run the script with tools that say what they are given; None: the tool is missing."""
    tools = folder / "bin"
    tools.mkdir()
    _program(tools / "python3", f'exec "{sys.executable}" "$@"\n')
    for name, said in (("cargo", crates), ("pip-audit", python)):
        if said is not None:
            (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))
            _program(
                tools / name,
                f'[ "$2" = --version ] && exit 0\necho "no route to the service" >&2\ncat "{folder}/{name}"\n',
            )
        elif name == "cargo":
            _program(tools / name, "exit 101\n")
    ran = subprocess.run(
        ["bash", str(repository / "scripts" / "audit")],
        cwd=folder,
        env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("crates", "python", "status", "said"),
    [
        (CRATES, PYTHON, 0, r"812 RustSec advisories of 2026-11-01, commit abc123.*0 apply.*\n.*1 packages compared"),
        (CRATES | {"vulnerabilities": {"list": [FLAWED]}}, PYTHON, 1, r"some 1\.0: RUSTSEC-1 reads too far"),
        (CRATES, {"dependencies": [HIT]}, 1, r"lxml 6: PYSEC-1, fixed in 7"),
        (CRATES | {"vulnerabilities": {"list": [FLAWED]}}, None, 1, r"RUSTSEC-1[\s\S]*pip-audit is missing"),
        (None, None, 4, r"cargo-audit is missing[\s\S]*pip-audit is missing[\s\S]*nothing can be said of: crates Python"),
        ("", PYTHON, 4, r"no RustSec advisories in .*no route to the service"),
        (CRATES | {"database": {"advisory-count": 0}}, PYTHON, 4, "no RustSec advisories in"),
        (CRATES, "", 4, r"gave no advisories: no route to the service"),
        (CRATES, {"dependencies": [{"name": "a", "skip_reason": "x"}]}, 4, "gave no advisories"),
    ],
)  # fmt: skip
def test_it_says_what_it_went_by(
    repository: Path, tmp_path: Path, crates: object, python: object, status: int, said: str
) -> None:
    code, text = _audit(repository, tmp_path, crates, python)
    assert code == status and re.search(said, text), text


def test_it_is_no_part_of_the_tests(repository: Path) -> None:
    for name in ("test", "lint", "install", "venv"):
        assert "audit" not in (repository / "scripts" / name).read_text()


def test_a_lock_has_hashes_of_every_package_or_of_none(repository: Path) -> None:
    lock = (repository / "requirements.lock").read_text().replace("\\\n", " ")
    pins = re.findall(r"^[A-Za-z0-9._-]+==.*", lock, re.MULTILINE)
    hashed = [pin for pin in pins if re.search(r"--hash=sha256:[0-9a-f]{64}\b", pin)]
    assert len(pins) > 50 and len(hashed) in (0, len(pins))


def test_what_builds_a_release_has_hashes_and_the_same_maturin(repository: Path) -> None:
    lock = (repository / "requirements.lock").read_text()
    dist = (repository / "requirements-dist.lock").read_text().replace("\\\n", " ")
    pins = re.findall(r"^[A-Za-z0-9._-]+==.*", dist, re.MULTILINE)
    assert {"auditwheel", "cargo-zigbuild", "maturin", "ziglang"} <= {pin.split("==")[0] for pin in pins}
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", pin) for pin in pins)
    [maturin] = re.findall(r"^maturin==\S+", lock, re.MULTILINE)
    assert maturin in [pin.split()[0] for pin in pins]


def test_constraints_are_the_locked_versions_without_hashes(repository: Path, tmp_path: Path) -> None:
    subprocess.run(
        [str(repository / "scripts" / "constraints"), str(tmp_path / "c.txt")], cwd=repository, check=True
    )
    made = (tmp_path / "c.txt").read_text().splitlines()
    lock = (repository / "requirements.lock").read_text()
    assert made == re.findall(r"^[A-Za-z0-9._-]+==[^ \\\n]+", lock, re.MULTILINE) and made
