"""The command blocks of README, tutorial and how-tos run, page by page, in a scratch directory with a real server.

Comments before a block: `<!-- run: no, REASON -->` for one that cannot run here, `<!-- run: lab -->` for one that runs
as root with the lab's tests, `<!-- run: first COMMANDS -->` for what a reader has and the scratch directory lacks. In
`console` blocks the lines behind a prompt are commands and the others their output; `#` is root's prompt. Absolute paths of the pages are below the scratch
directory, and far.example.org is a server on the loopback interface.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from remote_copy_support import Site

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs/tutorial").glob("*.md")),
    *sorted((REPOSITORY / "docs/how-to").glob("*.md")),
]
BLOCK = re.compile(
    r"^(?:<!-- run: (?P<mark>[^>]+) -->\n)?```(?:sh|bash|console)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
ROOTS = re.compile(
    r"(?<![\w./~$:@-])/(?=(?:scratch|data|archive|mirror|shared|tmp)\b)|(?<=:)/(?=(?:scratch|archive)\b)"
)
"""The slash of absolute paths in pages."""

WAYSTAGE = """#!/bin/bash
words=("${{@//far.example.org/127.0.0.1}}") more=()
if [[ "$1" =~ ^(copy|remote)$ && "$*" == *far.example.org* ]]; then
    more=(--port {port} --identity {key})
    [[ "$*" == *--trust-new* ]] || more+=(--server-key '{server_key}')
fi
exec {python} -m waystage "${{words[@]}}" "${{more[@]}}"
"""

PAGE_S = 400.0
"""For the longest page on the slowest machine: a page has tens of commands, which import what they need."""


@dataclass(frozen=True)
class Block:
    """Commands of a page, and where they begin."""

    line: int
    commands: str


def blocks(page: Path, *, lab: bool = False) -> list[Block]:
    """Those that run, here or in the lab."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        mark = match["mark"] or ""
        if mark.startswith("no, ") or (mark == "lab") != lab:
            continue
        line = text.count("\n", 0, match.start("text")) + 1
        is_console = text[: match.start("text")].endswith("```console\n")
        commands = _behind_prompts(match["text"]) if is_console else match["text"]
        before = mark.removeprefix("first ") + "\n" if mark.startswith("first ") else ""
        found.append(Block(line, before + commands))
    return found


def _behind_prompts(text: str) -> str:
    lines, continued = [], False
    prompts = ("$ ", "# ") if os.geteuid() == 0 else ("$ ",)
    for line in text.splitlines():
        if continued or line.startswith(prompts):
            lines.append(line if continued else line[2:])
            continued = line.endswith("\\")
    return "\n".join(lines) + "\n"


RUNNING = [page for page in PAGES if blocks(page)]
IN_THE_LAB = [page for page in PAGES if blocks(page, lab=True)]


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.fixture
def scratch(site: Site) -> Iterator[Path]:
    """What the pages speak of, in small."""
    site.serve()
    root = site.data
    rng = np.random.default_rng(1)
    for folder, names in {
        "scratch/project": ["a.dat", "run-07/particles-003.h5", "run-07/b.tmp", "logs/c.log"],
        "scratch/run7": ["a.dat", "below/b.dat"],
        "data/run42": ["a.dat", "b.tmp"],
        "data/sample": ["file"],
        "results": ["summary.csv", "plots/p.png"],
    }.items():
        for number, name in enumerate(names):
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.bytes(20_000 * (number + 1)))
    for folder in ("archive", "mirror", "shared", "photos", "bin", "tmp", "scratch/old"):
        (root / folder).mkdir()
    for number in range(2):
        image.imsave(root / f"photos/{number}.png", rng.random((256, 256, 3)))
    subprocess.run(["cp", "-a", root / "scratch/project", root / "mirror"], check=True)
    (root / "limits.txt").write_text("mon-fri 08:00-18:00=200M,18:00-08:00=off\n")
    (root / "stamp").touch()
    os.utime(root / "stamp", (0, 0))
    (root / "experiments").symlink_to(REPOSITORY / "experiments")
    (root / ".venv").symlink_to(sys.prefix)
    program = root / "bin/waystage"
    program.write_text(
        WAYSTAGE.format(
            port=site.port, key=site.folder / "client.key", server_key=site.server_key, python=sys.executable
        )
    )
    program.chmod(0o755)
    yield root


@pytest.mark.timeout(PAGE_S + 60)
@pytest.mark.parametrize("page", RUNNING, ids=name)
def test_the_commands_of_a_page_run(page: Path, site: Site, scratch: Path) -> None:
    run(page, blocks(page), site, scratch)


@pytest.mark.lab
@pytest.mark.timeout(PAGE_S + 60)
@pytest.mark.parametrize("page", IN_THE_LAB, ids=name)
def test_the_commands_of_a_page_run_in_the_lab(page: Path, site: Site, scratch: Path) -> None:
    try:
        run(page, blocks(page, lab=True), site, scratch)
    finally:
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            mounted = line.split()[1]
            if mounted.startswith(f"{scratch}/"):
                subprocess.run([scratch / "bin/waystage", "lab", "pfs", "umount", mounted], check=True)


def run(page: Path, wanted: list[Block], site: Site, scratch: Path) -> None:
    script = "set -eo pipefail\n" + "".join(
        f"echo '{page.name}, line {block.line}' >&2\n{ROOTS.sub(f'{scratch}/', block.commands)}\n"
        for block in wanted
    )
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=scratch,
        env=site.environment() | {"PATH": f"{scratch}/bin:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stderr[-2000:]}\n{ran.stdout[-1000:]}"


def test_each_mark_is_known_and_each_reason_says_what_is_lacking() -> None:
    known = re.compile(r"lab|first .+|no, (needs |runs until |an excerpt ).*")
    marks = [
        (name(page), match["mark"]) for page in PAGES for match in BLOCK.finditer(page.read_text("utf-8"))
    ]
    assert [(page, mark) for page, mark in marks if mark is not None and not known.fullmatch(mark)] == []
