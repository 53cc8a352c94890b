"""Paths as text for people: one line each, whatever bytes they hold.

Arrives: a path.
Leaves: a line of text.
Must not know: where it is shown.
"""

from __future__ import annotations

import os


def display(path: bytes | str) -> str:
    """A path as one line of text: what would break the line or is no UTF-8 is written as a backslash sequence."""
    raw = os.fsencode(path)
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
