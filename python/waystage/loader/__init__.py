"""The loader: files of a tree or catalog, read ahead object by object, delivered as buffers.

Arrives: a tree or a catalog, a seed, a rank.
Leaves: (path, buffer) or (path, offset, buffer), in sequence; counts; a state to resume from.
Must not know: what is done with the bytes, jobs, the backplane.
"""

from waystage.loader.errors import FileNotLoaded, LoaderError
from waystage.loader.loader import Loader
from waystage.loader.profile import Profile

__all__ = ["FileNotLoaded", "Loader", "LoaderError", "Profile"]
