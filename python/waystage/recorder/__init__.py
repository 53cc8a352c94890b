"""Running a program while its changes to files are recorded in a catalog.

Arrives: a command line, a catalog or a tree.
Leaves: the program's exit status, and an updated catalog.
Must not know: the format of a catalog, the transport of records.
"""

from waystage.recorder.errors import CompilerMissing, RecorderError
from waystage.recorder.library import build
from waystage.recorder.run import Ran, RecordOptions, record

__all__ = ["CompilerMissing", "Ran", "RecordOptions", "RecorderError", "build", "record"]
