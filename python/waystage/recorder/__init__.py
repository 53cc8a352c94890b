"""Running a program while what it does to files is recorded in a catalog.

Arrives: a command line, a catalog or a tree.
Leaves: the program's exit status, and a catalog that knows what it did.
Must not know: what a catalog looks like inside, how records travel.
"""

from waystage.recorder.errors import CompilerMissing, RecorderError
from waystage.recorder.library import build
from waystage.recorder.run import Ran, RecordOptions, record

__all__ = ["CompilerMissing", "Ran", "RecordOptions", "RecorderError", "build", "record"]
