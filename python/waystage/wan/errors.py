"""Errors in configuration, key files and addresses.

Arrives: nothing.
Leaves: an error whose message names the file, the key and the remedy.
Must not know: who shows it.
"""

from __future__ import annotations


class WanConfigError(ValueError):
    """An invalid configuration, key file or remote path."""
