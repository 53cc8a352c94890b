"""Write the man pages of the command line, man(7), into a folder: waystage.1 and one for each command."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from waystage import __version__
from waystage.cli.main import group

AUTHORS = (
    "Waystage's reference is in docs/ of its sources; exit statuses are in docs/reference/exit-codes.md."
)


def pages(command: click.Command, path: tuple[str, ...] = ("waystage",)) -> Iterator[tuple[str, str]]:
    """The name of each page and its text, of a command and those below it."""
    context = click.Context(command, info_name=" ".join(path))
    yield "-".join(path), page(command, context, path)
    for name, below in _below(command, context):
        yield from pages(below, (*path, name))


def page(command: click.Command, context: click.Context, path: tuple[str, ...]) -> str:
    """One page."""
    title = "-".join(path)
    lines = [f'.TH "{title.upper()}" "1" "" "Waystage {__version__}" "Waystage"', ".nh", ".ad l"]
    lines += [".SH NAME", f"{_text(title)} \\- {_text(command.get_short_help_str(200).rstrip('.'))}"]
    words = " ".join(command.collect_usage_pieces(context))
    lines += [".SH SYNOPSIS", f"\\fB{_text(' '.join(path))}\\fR {_text(words)}"]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records = [
        record
        for each in command.get_params(context)
        if (record := each.get_help_record(context)) and record[1]
    ]
    if records:
        lines.append(".SH OPTIONS")
        for options, about in records:
            lines += [".TP", f"\\fB{_text(options)}\\fR", _text(about)]
    below = list(_below(command, context))
    if below:
        lines.append(".SH COMMANDS")
        for name, each in below:
            lines += [".TP", f"\\fB{_text(name)}\\fR", _text(each.get_short_help_str(200))]
    if command.epilog:
        shown = [_text(line) for line in inspect.cleandoc(command.epilog.replace("\b", "")).splitlines()]
        lines += [
            ".SH EXAMPLES",
            ".nf",
            *(line for line in shown if line.strip() not in ("", "Examples:")),
            ".fi",
        ]
    near = ["-".join(path[:-1])] if len(path) > 1 else []
    lines += [".SH SEE ALSO"]
    lines += [
        f"\\fB{_text(each)}\\fR(1)" for each in [*near, *("-".join((*path, name)) for name, _ in below)]
    ]
    return "\n".join([*lines, ".PP", _text(AUTHORS)]) + "\n"


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield name, found


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.partition("\f")[0])):
        verbatim = paragraph.startswith("\b")
        yield ".PP"
        if verbatim:
            yield from (
                ".nf",
                *(_text(line) for line in paragraph.removeprefix("\b").strip("\n").splitlines()),
                ".fi",
            )
        else:
            yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Text that roff shows as it is: no request at its beginning, and hyphens that can be searched for."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def write(folder: Path) -> list[Path]:
    """Write all pages; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(group):
        written.append(folder / f"{name}.1")
        written[-1].write_text(text, encoding="utf-8")
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: write_man_pages.py FOLDER")
    print(f"{len(write(Path(sys.argv[1])))} man pages in {sys.argv[1]}")
