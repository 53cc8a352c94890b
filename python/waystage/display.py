"""Paths as text for people, one line each, and for programs, which get the bytes.

Arrives: a path.
Leaves: a line of text; the exact bytes in base 64 where the text does not tell them.
Must not know: where it is shown.
"""

from __future__ import annotations

import base64
import os


def display(path: bytes | str) -> str:
    """A path as one line of text: what would break the line or is no UTF-8 is written as a backslash sequence."""
    raw = os.fsencode(path)
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def base64_of(path: bytes | str) -> str | None:
    """The bytes of a path in base 64, where `display` does not give exactly these; else None.

    A line break and a backslash with an n look the same in a line of text: without this, the text is what the name is.
    """
    raw = os.fsencode(path)
    return None if display(raw).encode() == raw else base64.b64encode(raw).decode("ascii")


def named(path: bytes | str) -> dict[str, str | None]:
    """A path in JSON: as text, and its bytes where these are others."""
    return {"path": display(path), "path_base64": base64_of(path)}
