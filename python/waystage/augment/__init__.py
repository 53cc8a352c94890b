"""New images from images, for training: written to a tree or a shard, or streamed.

Arrives: a tree or a catalog of images, operations, a seed.
Leaves: new images, the same for the same seed on any number of threads and nodes; counts and reasons of broken ones.
Must not know: how the data plane decodes and transforms images; what they are for.
"""

from waystage.augment.options import AugmentOptions, Streamed
from waystage.augment.stream import stream
from waystage.augment.write import Written, dry_run, write

__all__ = ["AugmentOptions", "Streamed", "Written", "dry_run", "stream", "write"]
