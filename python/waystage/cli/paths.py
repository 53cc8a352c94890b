"""Paths in JSON and NUL-separated output: their exact bytes.

Arrives: paths as bytes.
Leaves: JSON with unambiguous paths, or the paths themselves, each ended by a NUL.
Must not know: what is reported about them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from waystage.cli.common import ExitCode, Output, UserError

F = TypeVar("F", bound=Callable[..., Any])


def null_option(help_text: str) -> Callable[[F], F]:
    """`--null`, `-0`: the function receives `null`."""
    return click.option("--null", "-0", "null", is_flag=True, help=help_text)


def refuse_both(null: bool, output: Output) -> None:
    """Raise UserError if both --null and --json are given."""
    if null and output.json:
        raise UserError("--null and --json exclude each other: give one", ExitCode.USAGE)


def print_null(paths: Iterable[bytes], output: Output) -> None:
    """Write the paths, each ended by a NUL, for xargs -0 and `waystage copy --files-from - -0`."""
    if not output.quiet:
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join((path or b".") + b"\0" for path in paths))
        sys.stdout.buffer.flush()


def named_lists(**lists: Iterable[bytes | str]) -> dict[str, list[str | None]]:
    """Lists of paths as text, each with a list NAME_base64 of the bytes of paths that text cannot represent."""
    from waystage.display import base64_of, display

    value: dict[str, list[str | None]] = {}
    for name, paths in lists.items():
        held = [os.fsencode(path) for path in paths]
        value[name] = [display(path) for path in held]
        value[f"{name}_base64"] = [base64_of(path) for path in held]
    return value


def to_copy(lacking: Iterable[bytes], changed: Iterable[bytes]) -> list[bytes]:
    """The paths to copy to make two trees equal: those that are missing or differ.

    Excludes ancestors of other paths: a copy sets their attributes anyway, and naming one would copy its complete
    subtree.
    """
    wanted = {*lacking, *changed}
    passed: set[bytes] = set()
    for path in wanted:
        above = path
        while above and above not in passed:
            above = above.rpartition(b"/")[0]
            if above in passed:
                break
            passed.add(above)
    return sorted(path for path in wanted if path not in passed or path in {*lacking})
