"""Errors of recording a program, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this package.
Must not know: who records.
"""

from __future__ import annotations


class RecorderError(RuntimeError):
    """The library cannot be compiled, or the program not started; the message says why and what to do."""


class CompilerMissing(RecorderError):
    """There is no C compiler."""
