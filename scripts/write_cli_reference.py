"""Write docs/reference/cli.md from the commands themselves; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from waystage.cli.main import group

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

HEAD = """# The command line

Generated from the commands by `make docs`; do not edit. Exit statuses are explained in [exit-codes.md](exit-codes.md).
Every command answers `--help`; completion for bash, zsh and fish comes from `waystage completion`.
"""


def sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path), max_content_width=100, terminal_width=100)
    yield f"\n## {' '.join(path)}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, (*path, name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is not current")
    check = parser.parse_args().check
    page = HEAD + "".join(sections(group, ("waystage",)))
    if not check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        print(f"{PAGE} is not current: run 'make docs'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
