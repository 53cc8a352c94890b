"""What keeps a program from being profiled, in one sentence for the user.

Arrives: nothing.
Leaves: the errors of this room.
Must not know: who profiles.
"""

from __future__ import annotations


class ProfilerError(RuntimeError):
    """The library cannot be compiled, or the program not started; the message says why and what to do."""


class CompilerMissing(ProfilerError):
    """There is no C compiler for MPI."""
