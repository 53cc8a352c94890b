"""Write docs/reference/cli.md from the commands themselves; `--check` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import generated_page

from waystage.cli.main import group

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

HEAD = """# The command line

Generated from the commands by `make docs`; do not edit. Exit statuses are explained in [exit-codes.md](exit-codes.md).
Every command answers `--help`; completion for bash, zsh and fish comes from `waystage completion`.
A wheel of `make dist` installs a man page for each: `man waystage-copy`.
"""


def sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(path), max_content_width=100, terminal_width=100)
    yield f"\n## {' '.join(path)}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, (*path, name))


if __name__ == "__main__":
    sys.exit(generated_page.write(PAGE, HEAD + "".join(sections(group, ("waystage",))), __doc__))
