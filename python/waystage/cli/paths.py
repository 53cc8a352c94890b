"""Paths in answers for programs: their exact bytes.

Arrives: paths as bytes.
Leaves: JSON that tells a line break from what stands for one; or the paths themselves, each ended by a NUL.
Must not know: what was found out about them.
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
    """Raise UserError where paths alone and one JSON object are asked for."""
    if null and output.json:
        raise UserError("--null and --json exclude each other: give one", ExitCode.USAGE)


def print_null(paths: Iterable[bytes], output: Output) -> None:
    """Paths as they are, each ended by a NUL, so that xargs -0 and `waystage copy --files-from - -0` take them."""
    if not output.quiet:
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join((path or b".") + b"\0" for path in paths))
        sys.stdout.buffer.flush()


def named_lists(**lists: Iterable[bytes | str]) -> dict[str, list[str | None]]:
    """Lists of paths as text, and beside each, as NAME_base64, the bytes of those that the text does not tell."""
    from waystage.display import base64_of, display

    value: dict[str, list[str | None]] = {}
    for name, paths in lists.items():
        held = [os.fsencode(path) for path in paths]
        value[name] = [display(path) for path in held]
        value[f"{name}_base64"] = [base64_of(path) for path in held]
    return value


def to_copy(lacking: Iterable[bytes], changed: Iterable[bytes]) -> list[bytes]:
    """What is to be copied to make two trees alike: names that are lacking or unlike.

    Without directories that a copy of the others comes through: it gives them their attributes, and to name one would mean
    all that is in it.
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
