"""New images from images, for training: written to a tree or a shard, or streamed.

Arrives: a tree or a catalog of images, operations, a seed.
Leaves: new images, the same for the same seed whatever the threads and nodes; what was broken, counted and told.
Must not know: how images are decoded and changed, which the data plane does; what they are for.
"""

from waystage.augment.options import AugmentOptions, Streamed
from waystage.augment.stream import stream
from waystage.augment.write import Written, dry_run, write

__all__ = ["AugmentOptions", "Streamed", "Written", "dry_run", "stream", "write"]
