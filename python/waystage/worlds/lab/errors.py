"""What can go wrong with a lab, by what the caller can do about it.

Arrives: nothing.
Leaves: exceptions whose message is one sentence for the user.
Must not know: exit codes; the CLI maps the types to them.
"""

from __future__ import annotations

from waystage.worlds.base import WorldError


class LabError(WorldError):
    """The lab cannot do what was asked; the message says what, where, and how to fix it."""


class NotRoot(LabError):
    """Namespaces need root, and nothing has been done yet."""


class MissingProgram(LabError):
    """A program is not on this machine; the message names the Debian package."""


class LabBusy(LabError):
    """A living process holds the lab."""
