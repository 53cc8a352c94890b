"""Host lists of schedulers: `c1,c2` and Slurm's `c[1-3,7],r[1-2]n[01-16]`.

Arrives: a text.
Leaves: node names in order, each once.
Must not know: whether the nodes exist.

ClusterShell's NodeSet sorts nodes, and the order of a list is that of its ranks; it has no bound on what a text expands to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_NODES = 65536
"""Larger than any allocation; bounds what `c[1-999999999]` can cost."""

MAX_RANGES = 8
"""In one name."""

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[0-9,\-]+\])+")
_RANGES = re.compile(r"\[([0-9,\-]+)\]")


class HostlistError(ValueError):
    """A list of nodes that cannot be read; the message says where."""


def expand(text: str) -> tuple[str, ...]:
    """`c[1-3],s1` -> c1, c2, c3, s1. Leading zeros are kept. Raises HostlistError."""
    names: dict[str, None] = {}
    position = count = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise HostlistError(
                f"node list {ascii(text)[:60]}: cannot be read at character {position + 1}: write c1,c2 or c[1-3]"
            )
        if item[0].count("[") > MAX_RANGES:
            raise HostlistError(f"node list {ascii(text)[:60]}: more than {MAX_RANGES} ranges in a name")
        for name in _names(item[0], text):
            names[name] = None
            count += 1  # repeated names too: each takes its time
            if count > MAX_NODES:
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


def _names(item: str, text: str) -> Iterator[str]:
    """The names of `r[1-2]n[1-2]`, the last range fastest."""
    found = _RANGES.search(item)
    if found is None:
        yield item
        return
    for number in _numbers(found[1], text):
        for rest in _names(item[found.end() :], text):
            yield f"{item[: found.start()]}{number}{rest}"


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if bounds is None:
            raise HostlistError(f"node list {ascii(text)[:60]}: {part!r} is no range: write 3 or 1-3")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if high < low or high - low >= MAX_NODES:
            raise HostlistError(f"node list {ascii(text)[:60]}: range {part} runs backwards or is too long")
        yield from (f"{number:0{len(bounds[1])}d}" for number in range(low, high + 1))
