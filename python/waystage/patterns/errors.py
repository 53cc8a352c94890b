"""What goes wrong with a pattern, in one sentence for the user.

Arrives: nothing.
Leaves: the one error of this room.
Must not know: who reads patterns.
"""

from __future__ import annotations


class PatternError(ValueError):
    """A pattern that cannot be read, written or merged; the message says which file, why, and what to do."""
