"""What can be wrong with an experiment file.

Arrives: a key and a sentence.
Leaves: exceptions that `loading` turns into `FILE:LINE: KEY: sentence`.
Must not know: YAML, files.
"""

from __future__ import annotations

Key = tuple[str | int, ...]
"""Where a value stands: `("jobs", "mixes", 0, "share")`."""


class ExperimentError(ValueError):
    """An experiment file that cannot be used; the message names file, line and key, and how to fix it."""


class Problem(Exception):
    """Something wrong at `key`, before the file and line are known."""

    def __init__(self, key: Key, text: str) -> None:
        super().__init__(text)
        self.key = key
        self.text = text
