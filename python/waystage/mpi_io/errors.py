"""Errors of starting a program with collective I/O, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this package.
Must not know: who starts the program.
"""

from __future__ import annotations


class MpiIoError(RuntimeError):
    """The program was not started; the message says why and what to do."""


class Missing(MpiIoError):
    """Something is not installed: a compiler, headers, or the client library."""
