"""Paths as single lines of text, and their exact bytes for JSON.

Arrives: a path.
Leaves: a line of text; the bytes in base 64 if the text is ambiguous.
Must not know: where it is shown.
"""

from __future__ import annotations

import base64
import os


def display(path: bytes | str) -> str:
    """A path as one line of text, with line breaks and bytes that are not UTF-8 as backslash sequences."""
    raw = os.fsencode(path)
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def base64_of(path: bytes | str) -> str | None:
    """The bytes of a path in base 64 if `display` does not represent them exactly; else None.

    As text, a line break cannot be distinguished from a backslash and an n.
    """
    raw = os.fsencode(path)
    return None if display(raw).encode() == raw else base64.b64encode(raw).decode("ascii")


def named(path: bytes | str) -> dict[str, str | None]:
    """A path in JSON: its text, and its bytes if they differ."""
    return {"path": display(path), "path_base64": base64_of(path)}
