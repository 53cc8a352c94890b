"""Files of a tree given another layout: what to ask for, what a contention model suggests, replicas on Gfarm.

Arrives: text of layouts, sizes of files, the shape of a storage system; paths in Gfarm.
Leaves: size classes for `waystage._native.TreeRestripe`; suggestions with reasons; replicas.
Must not know: how files are laid out anew, the command line.
"""

from waystage.restripe.errors import LayoutTextError, ReplicaError
from waystage.restripe.layouts import layout_text, load_classes, parse_layout, parse_layouts, save_classes
from waystage.restripe.suggest import StorageModel, Suggestion, suggest

__all__ = [
    "LayoutTextError",
    "ReplicaError",
    "StorageModel",
    "Suggestion",
    "layout_text",
    "load_classes",
    "parse_layout",
    "parse_layouts",
    "save_classes",
    "suggest",
]
