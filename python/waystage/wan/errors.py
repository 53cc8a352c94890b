"""What can be wrong with what a user or an administrator wrote.

Arrives: nothing.
Leaves: an error whose message names the file, the key and the remedy.
Must not know: who shows it.
"""

from __future__ import annotations


class WanConfigError(ValueError):
    """A configuration, a file of keys or the name of an end that cannot be used."""
