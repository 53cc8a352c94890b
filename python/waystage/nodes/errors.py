"""Errors of work on many nodes, one sentence each for the user.

Arrives: nothing.
Leaves: the errors of this room.
Must not know: what the work is.
"""

from __future__ import annotations


class NodesError(RuntimeError):
    """Work that many nodes cannot do, or no longer; the message says where, why, and what to do."""


class NodesMissing(NodesError):
    """Many nodes were asked for, and Dask is not installed."""


class NodesRefused(NodesError):
    """A node cannot take part: it lacks a path, or has another version of Waystage or another user."""


class TaskKilled(NodesError):
    """A task whose workers were killed again and again."""


class Cancelled(Exception):
    """In a task: its result is no longer wanted."""
