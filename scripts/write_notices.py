"""Write the licences of the Rust crates and JavaScript files that the wheel contains: `write_notices.py FILE`.

The crates are those that the native module and libwaystage_io.so link, without crates of tests and builds; the texts
are the licence files of their sources.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OURS = ("waystage-py", "waystage-collective-client")
"""The crates that the wheel is made of."""

VENDORED = Path(__file__).parents[1] / "python" / "waystage" / "view" / "page" / "vendor"

PATTERNS = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "license*")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: write_notices.py FILE", file=sys.stderr)
        return 2
    Path(sys.argv[1]).write_text(notices(), encoding="utf-8")
    return 0


def notices() -> str:
    """Name, version and licence of each crate, then every licence text once with the crates that have it."""
    command = [
        "cargo",
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    crates = linked(found)
    lines = ["The native code of Waystage contains the crates below, each under its own licence.", ""]
    texts: dict[str, list[str]] = {}
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"{name}: {crate['license'] or 'see its text'}")
        folder = Path(crate["manifest_path"]).parent
        for path in sorted({path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file()}):
            texts.setdefault(path.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
    for text, names in texts.items():
        lines += ["", "-" * 78, ", ".join(names), "-" * 78, "", text]
    lines += vendored()
    return "\n".join(lines) + "\n"


def vendored() -> list[str]:
    """The JavaScript of the live view: each folder has the files of a release and its licence."""
    lines = ["", "-" * 78, "The page of the live view contains the files below.", "-" * 78]
    for folder in sorted(path for path in VENDORED.iterdir() if path.is_dir()):
        version = (folder / "VERSION").read_text(encoding="utf-8").strip()
        lines += ["", version, "", (folder / "LICENSE").read_text(encoding="utf-8").strip()]
    return lines


def linked(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages from a registry that ours depend on at run time, by name."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [key for key, package in packages.items() if package["name"] in OURS]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            if dependency["pkg"] not in seen and any(
                kind["kind"] is None for kind in dependency["dep_kinds"]
            ):
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[key] for key in seen if packages[key]["source"]), key=lambda crate: crate["name"])


if __name__ == "__main__":
    sys.exit(main())
