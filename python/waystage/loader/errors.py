"""Errors of a loader, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this package.
Must not know: who loads.
"""

from __future__ import annotations

from waystage._native import FileNotLoaded as FileNotLoaded


class LoaderError(ValueError):
    """Options, files or a state that a loader cannot use; the message says which and what to do."""
