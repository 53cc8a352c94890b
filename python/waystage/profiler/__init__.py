"""The MPI profiler: compiles the preloaded library, starts a program with it, collects its files.

Arrives: a command line.
Leaves: the program's exit status, and a pattern file.
Must not know: what a pattern is used for; how the library intercepts messages (shim/mpi).
"""

from waystage.profiler.errors import ProfilerError
from waystage.profiler.launch import Profiled, profile
from waystage.profiler.library import build

__all__ = ["Profiled", "ProfilerError", "build", "profile"]
