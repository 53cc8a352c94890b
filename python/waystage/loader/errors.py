"""What goes wrong with a loader, in one sentence for the user.

Arrives: nothing.
Leaves: the errors of this room.
Must not know: who loads.
"""

from __future__ import annotations

from waystage._native import FileNotLoaded as FileNotLoaded


class LoaderError(ValueError):
    """Options, files or a state that a loader cannot use; the message says which and what to do."""
