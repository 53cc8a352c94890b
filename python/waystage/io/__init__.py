"""Put and get: arrays in shared files, and arrays of another application by name.

Arrives: arrays (the buffer protocol), datatypes or lists of extents, names and versions.
Leaves: the same data in files, or at the readers of the name.
Must not know: MPI. A communicator is any object with `rank`, `size`, `bcast`, `allgather` and `allreduce`, as mpi4py's.

Everything goes through `libwaystage_io.so`, whose C interface is `shim/include/waystage_io.h`.
"""

from __future__ import annotations

from waystage.io.coupling import Coupling, couple
from waystage.io.datatypes import Datatype
from waystage.io.errors import Again, Ended, IoError, Lost, TimedOut
from waystage.io.files import Communicator, SharedFile, open_shared
from waystage.io.versions import VersionFile

__all__ = [
    "Again",
    "Communicator",
    "Coupling",
    "Datatype",
    "Ended",
    "IoError",
    "Lost",
    "SharedFile",
    "TimedOut",
    "VersionFile",
    "couple",
    "open_shared",
]
