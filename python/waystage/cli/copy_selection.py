"""Which entries `waystage copy` copies: patterns, lists, sizes and ages.

Arrives: options and the files that they name.
Leaves: checked values for the options of a copy, or a usage error.
Must not know: how they are applied.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from waystage.cli.common import ExitCode, UserError
from waystage.cli.copy_list import read_list
from waystage.cli.quantities import Size
from waystage.native_options.copies import FileLimits

if TYPE_CHECKING:
    from waystage._native import NameList

MOST_PATTERN_BYTES = 16 << 20


class Age(click.ParamType[int]):
    """`30d`, in seconds."""

    name = "age"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from waystage.units import UnitError, parse_age

        if isinstance(value, int):
            return value
        try:
            return parse_age(value)
        except UnitError as error:
            self.fail(f"{error} (docs/reference/units.md)", param, ctx)


@dataclass(frozen=True)
class Selected:
    """What is selected; `exclude` as text for catalogs."""

    exclude: tuple[str, ...]
    include: tuple[str, ...]
    names: NameList | None
    one_file_system: bool
    limits: FileLimits
    copy_links: bool = False

    def options(self) -> dict[str, Any]:
        """For CopyOptions."""
        return {
            "exclude": [os.fsencode(pattern) for pattern in self.exclude],
            "include": [os.fsencode(pattern) for pattern in self.include] or None,
            "names": self.names,
            "one_file_system": self.one_file_system,
            "copy_links": self.copy_links,
            "limits": self.limits,
        }


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of what is copied; the function receives `selected: Selected`."""
    options = (
        click.option(
            "--exclude", "-x", multiple=True, metavar="PATTERN", help="Exclude PATTERN (repeatable)."
        ),
        click.option(
            "--exclude-from",
            type=click.File("rb"),
            multiple=True,
            metavar="FILE",
            help="Exclude the patterns in FILE, one a line (repeatable); lines that begin with # or ; are comments.",
        ),
        click.option(
            "--include",
            "-i",
            multiple=True,
            metavar="PATTERN",
            help="Copy only files that match PATTERN (repeatable).",
        ),
        click.option(
            "--files-from",
            "listing",
            type=click.File("rb"),
            metavar="FILE",
            help="Copy only the paths below SRC listed in FILE, one a line; directories recursively; - is stdin.",
        ),
        click.option("--null", "-0", "nul", is_flag=True, help="With --files-from: paths end with a NUL."),
        click.option(
            "--copy-links",
            "-L",
            is_flag=True,
            help="Follow symbolic links of a SRC on this machine: copy what they lead to.",
        ),
        click.option("--one-file-system", is_flag=True, help="Do not cross file system boundaries."),
        click.option(
            "--min-size", type=Size(), metavar="SIZE", help="Copy only files of at least this size."
        ),
        click.option("--max-size", type=Size(), metavar="SIZE", help="Copy only files of at most this size."),
        click.option(
            "--min-age",
            type=Age(),
            metavar="AGE",
            help="Copy only files changed at least this long ago, e.g. 30d or 12h.",
        ),
        click.option(
            "--max-age", type=Age(), metavar="AGE", help="Copy only files changed at most this long ago."
        ),
    )

    @functools.wraps(function)
    def with_selected(
        *args: Any,
        exclude: tuple[str, ...],
        exclude_from: tuple[BinaryIO, ...],
        include: tuple[str, ...],
        listing: BinaryIO | None,
        nul: bool,
        copy_links: bool,
        one_file_system: bool,
        min_size: int | None,
        max_size: int | None,
        min_age: int | None,
        max_age: int | None,
        **kwargs: Any,
    ) -> Any:
        now = int(time.time())
        limits = FileLimits(
            min_size=min_size,
            max_size=max_size,
            since=None if max_age is None else now - max_age,
            until=None if min_age is None else now - min_age,
        )
        for least, most, kind in ((min_size, max_size, "size"), (min_age, max_age, "age")):
            if least is not None and most is not None and least > most:
                raise UserError(f"--min-{kind} is above --max-{kind}: no file is within both", ExitCode.USAGE)
        patterns = [pattern for file in exclude_from for pattern in read_patterns(file)]
        return function(
            *args,
            selected=Selected(
                (*exclude, *patterns), include, read_list(listing, nul), one_file_system, limits, copy_links
            ),
            **kwargs,
        )

    wrapped: Callable[..., Any] = with_selected
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def read_patterns(file: BinaryIO) -> list[str]:
    """The patterns in a file. Raises UserError."""
    try:
        content = file.read(MOST_PATTERN_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file.name} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None
    if len(content) > MOST_PATTERN_BYTES:
        raise UserError(f"{file.name} has more than 16 MiB: give fewer patterns", ExitCode.BAD_INPUT)
    if b"\0" in content:
        raise UserError(f"{file.name} has a NUL byte: give one pattern a line, as text", ExitCode.BAD_INPUT)
    lines = (line.removesuffix(b"\r") for line in content.split(b"\n"))
    return [os.fsdecode(line) for line in lines if line.strip() and line[:1] not in (b"#", b";")]
