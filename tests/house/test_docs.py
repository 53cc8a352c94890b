"""The documents: no dead link, every page reachable, generated pages current, commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from waystage.cli.main import group

REPOSITORY = Path(__file__).parents[2]
TOP = [REPOSITORY / n for n in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = sorted([*TOP, *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def links(page: Path) -> Iterator[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as they are rendered on forges."""
    found = set()
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        heading = re.match(r"#+\s+(.*)", line)
        if heading:
            words = re.sub(r"[^\w\- ]", "", heading.group(1).lower())
            found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_link_is_dead(page: Path) -> None:
    dead = []
    for target in links(page):
        path, _, fragment = target.partition("#")
        file = page if not path else (page.parent / path)
        if not file.exists() or (fragment and file.suffix == ".md" and fragment not in anchors(file)):
            dead.append(target)
    assert not dead


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in links(page):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists():
                waiting.append(file)
    assert [name(p) for p in PAGES if p not in reached] == []


@pytest.mark.parametrize("writer", ["write_cli_reference.py", "write_python_reference.py"])
def test_a_generated_page_is_current(writer: str) -> None:
    script = REPOSITORY / "scripts" / writer
    ran = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def commands_of(page: Path) -> list[str]:
    """The lines of a page's shell blocks that call make or waystage, without comments."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block in re.findall(r"^```(?:sh|console|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s#.*", "", line.removeprefix("$ ").removeprefix("# ")).strip()
            line = line.removeprefix("sudo ")
            if re.match(r"(make|(\.venv/bin/)?waystage)\b", line):
                lines.append(line)
    return lines


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_each_command_in_a_page_exists(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for line in commands_of(page):
        words = shlex.split(re.split(r"[|>&;]", line)[0])
        if words[0] == "make":
            unknown = [w for w in words[1:] if "=" not in w and w not in targets]
            assert not unknown, f"{line}: the Makefile has no target {unknown}"
        else:
            _check_waystage(line, words[1:])


def _check_waystage(line: str, words: list[str]) -> None:
    command: click.Command = group
    context = click.Context(group)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        assert below is not None, f"{line}: there is no {words[0]!r}"
        command, words = below, words[1:]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h", "..."}
    own = words[: words.index("--")] if "--" in words else words
    unknown = [w for w in own if w.startswith("--") and w.partition("=")[0] not in known]
    assert not unknown, f"{line}: {command.name} has no option {unknown}"


def test_the_readme_gives_the_two_commands_and_make_help_lists_what_is_promised() -> None:
    lines = commands_of(REPOSITORY / "README.md")
    assert lines[:2] == ["make demo", "make test"]
    listed = subprocess.run(
        ["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    for target in (
        "demo",
        "test",
        "lint",
        "build",
        "lab-up",
        "lab-down",
        "bench",
        "fuzz",
        "docs",
        "lab-test",
    ):
        assert re.search(rf"^  make {target} ", listed, re.MULTILINE), target


def test_every_exit_code_is_documented() -> None:
    from waystage.cli.common import ExitCode

    text = (REPOSITORY / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    assert {int(c) for c in ExitCode} == {int(c) for c in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def test_every_benchmark_is_documented() -> None:
    text = (REPOSITORY / "docs/reference/bench.md").read_text(encoding="utf-8")
    for file in (REPOSITORY / "bench").glob("[!_]*.py"):
        name = file.stem.replace("_", "-")
        assert f"| `{name}` |" in text, file


def test_no_file_keeps_the_markers_of_a_merge() -> None:
    """A formatter may have joined them with their neighbours, so they are found anywhere in a line."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False
    ).stdout
    if not listed:
        pytest.skip("no git history here: a tarball")
    marker = re.compile(rb"<{7} \w|>{7} \w|^={7}$", re.MULTILINE)
    files = [REPOSITORY / entry.decode() for entry in listed.split(b"\0") if entry]
    assert [name(path) for path in files if path.is_file() and marker.search(path.read_bytes())] == []
