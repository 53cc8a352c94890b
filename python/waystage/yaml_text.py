"""The reader of all YAML files, within bounds of size, depth and aliases.

Arrives: the bytes of a file.
Leaves: the document, with line numbers or as plain values; or `YamlError` with a line number.
Must not know: the meaning and the origin of the document.

A few hundred bytes of aliases can expand beyond any memory ("billion laughs"), and nesting costs quadratic time. Both
are checked on the event stream, before any node is built. Refusing aliases was rejected: experiments reuse lists.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

MAX_BYTES = 1 << 19
"""Hand-written files have a few kilobytes."""

MAX_DEPTH = 32
"""Nested lists and mappings; the deepest file of Waystage has seven levels."""

MAX_VALUES = 25_000
"""Keys, values, lists and mappings with aliases expanded. A list of ten thousand seeds fits."""

TEXT_OF_ONE = 64
"""Characters of a string that count as one value, because aliased long strings take memory too."""


class YamlError(ValueError):
    """Invalid YAML, or a document beyond the bounds; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@functools.lru_cache(maxsize=1)
def load(data: bytes) -> Any:
    """The document with the line of each key and item, as ruamel.yaml's round-trip types. Raises YamlError.

    Treat it as constant: it is cached by its bytes, because a file is parsed once for its kind and once for its
    contents.
    """
    return _load(data, YAML(typ="rt"))


def load_plain(data: bytes) -> Any:
    """The document as dicts, lists and scalars. Raises YamlError."""
    return _load(data, YAML(typ="safe", pure=True))


def _load(data: bytes, yaml: YAML) -> Any:
    if len(data) > MAX_BYTES:
        raise YamlError(
            1, f"has {len(data)} bytes; at most {MAX_BYTES} are read: split it, or shorten its lists"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(line, "is not UTF-8: save it as UTF-8") from None
    try:
        _check(text)
        return yaml.load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        found = re.search(r'found duplicate key "?([^"\s]+)', str(error.problem))
        raise YamlError(line, f"{found[1] if found else 'a key'}: is there twice: keep one") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise YamlError(line, f"is no valid YAML: {error.problem or error.context}") from None
    except YamlError:
        raise
    except (YAMLError, RecursionError, ValueError, TypeError, ArithmeticError) as error:
        # A value that its own tag or form does not fit, such as a date of month 13.
        first = (str(error).splitlines() or ["it cannot be read"])[0]
        raise YamlError(1, f"is no valid YAML: {first[:200]}") from None


def _check(text: str) -> None:
    """Raise YamlError if the document exceeds the bounds."""
    values = 0
    # The anchors of the lists and mappings that are open, and `values` where each began.
    open_at: list[tuple[str | None, int]] = []
    behind: dict[str, int] = {}
    for event in YAML(typ="safe", pure=True).parse(text):
        if isinstance(event, AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_at):
                raise YamlError(_line(event), f"*{event.anchor[:40]} stands within itself: remove the alias")
            values += behind.get(event.anchor, 1)
        elif isinstance(event, ScalarEvent):
            weight = 1 + len(event.value) // TEXT_OF_ONE
            values += weight
            if event.anchor is not None:
                behind[event.anchor] = weight
        elif isinstance(event, SequenceStartEvent | MappingStartEvent):
            open_at.append((event.anchor, values))
            values += 1
            if len(open_at) > MAX_DEPTH:
                raise YamlError(
                    _line(event),
                    f"is nested too deeply: at most {MAX_DEPTH} levels of lists and mappings are read",
                )
        elif open_at and not isinstance(event, NodeEvent):  # the end of the innermost
            anchor, began = open_at.pop()
            if anchor is not None:
                behind[anchor] = values - began
        if values > MAX_VALUES:
            raise YamlError(
                _line(event),
                f"stands for more than {MAX_VALUES:,} values, aliases written out: shorten its lists, "
                "or generate fewer aliases",
            )


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
