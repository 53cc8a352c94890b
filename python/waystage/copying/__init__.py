"""Copies of trees by many nodes.

Arrives: a source and a destination that all nodes reach, options, an engine.
Leaves: the copy that one node makes; counts and problems.
Must not know: how bytes are moved, how tasks reach nodes.
"""

from waystage.copying.on_nodes import Copied, copy_on_nodes
from waystage.copying.shares import clear_shares

__all__ = ["Copied", "clear_shares", "copy_on_nodes"]
