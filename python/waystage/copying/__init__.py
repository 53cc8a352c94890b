"""Copies of trees by many nodes: `on_nodes`, and the `shares` of nodes, which every copy clears.

Arrives: a source and a destination that all nodes reach, options, an engine.
Leaves: the copy that one node makes; counts and problems.
Must not know: how bytes are moved, how tasks reach nodes.

Nothing is imported here: a copy on one machine starts without the catalog's libraries.
"""
