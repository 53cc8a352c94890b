"""Errors of this package.

Arrives: nothing.
Leaves: exceptions whose message is one sentence for the user.
Must not know: exit codes; the CLI maps the types to them.
"""

from __future__ import annotations


class LayoutTextError(ValueError):
    """A text or file that describes no layout; the message says which part, and how to write it."""


class ReplicaError(RuntimeError):
    """Replicas that cannot be placed; the message names the nodes, and what to do."""
