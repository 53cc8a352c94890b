"""MPI programs whose collective I/O goes through aggregators, without a change of the program.

Arrives: a command line of an MPI launcher.
Leaves: the program's exit status.
Must not know: how I/O is intercepted (shim/io), how aggregators work, what a profile is used for.
"""

from waystage.mpi_io.errors import Missing, MpiIoError
from waystage.mpi_io.launch import Options, run
from waystage.mpi_io.products import Way, build

__all__ = ["Missing", "MpiIoError", "Options", "Way", "build", "run"]
