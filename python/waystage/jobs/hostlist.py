"""Host lists of schedulers: `c1,c2` and Slurm's `c[1-3,7],d04`.

Arrives: a text.
Leaves: node names in order, each once.
Must not know: whether the nodes exist.
"""

from __future__ import annotations

import re

MAX_NODES = 65536
"""Larger than any allocation; bounds what `c[1-999999999]` can cost."""

_ITEM = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\-]+)\])?([^\[\],\s]*)")


class HostlistError(ValueError):
    """A list of nodes that cannot be read; the message says where."""


def expand(text: str) -> tuple[str, ...]:
    """`c[1-3],s1` -> c1, c2, c3, s1. Leading zeros are kept. Raises HostlistError."""
    names: dict[str, None] = {}
    position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None or not item[0]:
            raise HostlistError(
                f"node list {ascii(text)[:60]}: cannot be read at character {position + 1}: write c1,c2 or c[1-3]"
            )
        for name in _names(item, text):
            names[name] = None
            if len(names) > MAX_NODES:
                raise HostlistError(f"node list {ascii(text)[:60]}: more than {MAX_NODES} nodes")
        position = item.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise HostlistError(
                    f"node list {ascii(text)[:60]}: cannot be read at character {position + 1}: write c1,c2 or c[1-3]"
                )
            position += 1
    if not names:
        raise HostlistError("the node list is empty: name at least one node, such as c1,c2")
    return tuple(names)


def _names(item: re.Match[str], text: str) -> list[str]:
    prefix, ranges, suffix = item[1], item[2], item[3]
    if ranges is None:
        return [prefix + suffix]
    names: list[str] = []
    for part in ranges.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if bounds is None:
            raise HostlistError(f"node list {ascii(text)[:60]}: {part!r} is no range: write 3 or 1-3")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if high < low or high - low >= MAX_NODES:
            raise HostlistError(f"node list {ascii(text)[:60]}: range {part} runs backwards or is too long")
        names += [f"{prefix}{n:0{len(bounds[1])}d}{suffix}" for n in range(low, high + 1)]
    return names
