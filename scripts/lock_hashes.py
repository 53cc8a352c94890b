"""Write requirements.lock with the hashes of its packages: of the wheels for each supported Python and machine, else the sources'.

Arrives on stdin: the versions, NAME==VERSION a line. Asks pip, which asks the index that it is configured for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
GLIBC = range(36, 4, -1)
"""manylinux tags up to Debian 12's glibc 2.36; pip wants each of them named (PEP 600)."""

HEAD = """\
# The versions that were tested, with the hashes of their files for Linux on x86_64 and aarch64: `make build` installs
# these and no other bytes. Made by `make lock` from the ranges in pyproject.toml.
"""


def main() -> int:
    pins = [line.strip() for line in sys.stdin if line.strip() and not line.startswith("#")]
    hashes: dict[str, set[str]] = {pin: set() for pin in pins}
    print("Asking for the files for each Python and machine; this takes minutes", file=sys.stderr)
    places = [(pins, python, machine) for python in PYTHONS for machine in MACHINES]
    with ThreadPoolExecutor(len(places)) as pool:
        for found in pool.map(lambda place: _wheels(*place), places):
            for pin, digest in found:
                hashes[pin].add(digest)
    # What has no wheels is built from its sources, which are the same everywhere.
    for pin, digest in _ask([pin for pin, digests in hashes.items() if not digests], []):
        hashes[pin].add(digest)
    missing = [pin for pin, digests in hashes.items() if not digests]
    if missing:
        print(
            f"waystage: no file of {', '.join(missing)} was found: is the index reachable?", file=sys.stderr
        )
        return 1
    lines = [HEAD]
    for pin in pins:
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin]))]))
        lines.append("\n")
    sys.stdout.write("".join(lines))
    return 0


def _wheels(pins: list[str], python: str, machine: str) -> list[tuple[str, str]]:
    """Pin and SHA-256 of the wheel that pip would install, of those that have one."""
    where = [
        "--use-feature=fast-deps",
        "--implementation",
        "cp",
        "--python-version",
        python,
        "--only-binary=:all:",
    ]
    for minor in GLIBC:
        where += ["--platform", f"manylinux_2_{minor}_{machine}"]
    where += ["--platform", f"manylinux2014_{machine}", "--platform", f"linux_{machine}"]
    left = list(pins)
    while True:
        try:
            return _ask(left, where)
        except _NotThere as error:
            left.remove(error.pin)


class _NotThere(Exception):
    def __init__(self, pin: str) -> None:
        super().__init__(pin)
        self.pin = pin


def _ask(pins: list[str], where: list[str]) -> list[tuple[str, str]]:
    """Raises _NotThere for one of which there is no such file."""
    if not pins:
        return []
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "wanted", Path(folder) / "report"
        wanted.write_text("\n".join(pins), encoding="ascii")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        argv += ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        argv += ["--target", f"{folder}/target", *where, "-r", str(wanted)]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            found = re.search(r"No matching distribution found for (\S+)", done.stderr)
            if found is None or found[1] not in pins:
                raise SystemExit(f"waystage: pip failed: {done.stderr.strip()}")
            raise _NotThere(found[1])
        items: list[dict[str, Any]] = json.loads(report.read_bytes())["install"]
    names = {_normal(pin.partition("==")[0]): pin for pin in pins}
    return [
        (names[_normal(item["metadata"]["name"])], item["download_info"]["archive_info"]["hashes"]["sha256"])
        for item in items
    ]


def _normal(name: str) -> str:
    """PEP 503."""
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    sys.exit(main())
