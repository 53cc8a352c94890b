"""What keeps a program from being recorded, in one sentence for the user.

Arrives: nothing.
Leaves: the errors of this room.
Must not know: who records.
"""

from __future__ import annotations


class RecorderError(RuntimeError):
    """The library cannot be compiled, or the program not started; the message says why and what to do."""


class CompilerMissing(RecorderError):
    """There is no C compiler."""
