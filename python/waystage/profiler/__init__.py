"""The MPI profiler: compiles the library that is preloaded, starts a program with it, collects what it left.

Arrives: a command line.
Leaves: the program's exit status, and a pattern file.
Must not know: what a pattern is used for; how the library sees messages, which is shim/mpi's.
"""

from waystage.profiler.errors import ProfilerError
from waystage.profiler.launch import Profiled, profile
from waystage.profiler.library import build

__all__ = ["Profiled", "ProfilerError", "build", "profile"]
