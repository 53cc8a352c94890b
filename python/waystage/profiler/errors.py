"""Errors of profiling a program, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this package.
Must not know: who profiles.
"""

from __future__ import annotations


class ProfilerError(RuntimeError):
    """The library cannot be compiled, or the program not started; the message says why and what to do."""


class CompilerMissing(ProfilerError):
    """There is no C compiler for MPI."""
