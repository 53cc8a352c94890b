"""Edits of slurm.conf and burst_buffer.conf: a marked block of lines, put in and taken out.

Arrives: the text of a configuration file; keys and values wanted in it.
Leaves: the text with the block, or SlurmConfigError naming the line that stands against it.
Must not know: files, processes.

slurm.conf(5): a line is KEY=VALUE pairs, keys in any case, `#` begins a comment, a backslash continues a line. Slurm
refuses to start where a key is given twice, so a key that the site has set is not set again: the same value is left
as it is, another one is an error that says what to change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from waystage.slurm.errors import SlurmConfigError

BEGIN = "# BEGIN waystage (waystage slurm install; waystage slurm uninstall removes it)"
END = "# END waystage"

_BLOCK = re.compile(rf"(?m)^{re.escape(BEGIN)}\n(?:.*\n)*?{re.escape(END)}\n?")


def keys_of(text: str) -> dict[str, tuple[str, int]]:
    """lower-case key -> its value and line, of the lines outside the block; the last one counts."""
    found: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(_without_block_lines(text), 1):
        match = re.match(r"\s*([A-Za-z]+)\s*=\s*([^#]*)", line)
        if match:
            found[match[1].lower()] = (match[2].strip(), number)
    return found


def with_block(text: str, wanted: Mapping[str, str], name: str) -> str:
    """The text with `wanted` in its block; unchanged where it is there already. Raises SlurmConfigError.

    JobSubmitPlugins is a list: the site's own entries are kept, which needs their line changed by the site.
    """
    present = keys_of(text)
    lines = []
    for key, value in wanted.items():
        own = present.get(key.lower())
        if own is None:
            lines.append(f"{key}={value}")
        elif key == "JobSubmitPlugins" and value in own[0].split(","):
            continue
        elif own[0] != value:
            raise SlurmConfigError(_conflict(name, key, value, *own))
    rest = without_block(text)
    if not lines:
        return rest
    if rest and not rest.endswith("\n"):
        rest += "\n"
    return rest + "\n".join([BEGIN, *lines, END]) + "\n"


def without_block(text: str) -> str:
    """The text as it was before `with_block`."""
    return _BLOCK.sub("", text)


def has_block(text: str) -> bool:
    return _BLOCK.search(text) is not None


def _without_block_lines(text: str) -> list[str]:
    """Its lines, those of the block empty, so that numbers stay."""
    return _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text).split("\n")


def _conflict(name: str, key: str, value: str, own: str, line: int) -> str:
    where = f"{name}: line {line}: {key}={own}"
    if key == "JobSubmitPlugins":
        return f"{where} is the site's own: write {key}={own},{value} there, then install again"
    if key in ("PrologSlurmctld", "EpilogSlurmctld"):
        return f"{where} is the site's own: call {value} from it and install with --keep-prolog, or remove the line"
    return f"{where} is the site's own, and Waystage needs {key}={value}: change or remove the line"
