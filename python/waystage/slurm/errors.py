"""What can go wrong with Slurm's side of Waystage.

Arrives: nothing.
Leaves: exceptions whose message is one sentence for the user.
Must not know: exit statuses; the CLI maps the types to them.
"""

from __future__ import annotations


class SlurmError(RuntimeError):
    """Slurm or one of its commands did not do what was asked."""


class SlurmConfigError(SlurmError):
    """A configuration file that cannot be changed as asked; the message names the file and the line to change."""


class SlurmMissing(SlurmError):
    """A command of Slurm is not installed; the message names Debian's package."""
