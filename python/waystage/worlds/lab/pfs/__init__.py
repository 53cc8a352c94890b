"""An emulated striped file system: mounted, looked into, unmounted.

Arrives: a shape (targets, metadata servers, layouts), a mount point, a folder or a recipe for made-up files.
Leaves: a mounted file system that answers as slowly as such servers would, and what was counted.
Must not know: who reads from it.

`crates/pfs` serves each mount, in a separate process.
"""

from waystage.worlds.lab.pfs.mounts import Mounted, mount, mounted, reset, statistics, unmount
from waystage.worlds.lab.pfs.shape import Shape, load, shipped
from waystage.worlds.lab.pfs.validity import LATE_LIMIT_PCT, why_invalid

__all__ = [
    "LATE_LIMIT_PCT",
    "Mounted",
    "Shape",
    "load",
    "mount",
    "mounted",
    "reset",
    "shipped",
    "statistics",
    "unmount",
    "why_invalid",
]
