"""Communication patterns: what an MPI program's ranks sent to one another.

Arrives: files of Waystage's profiler or of the original one.
Leaves: `Pattern`, in columns of numbers; the same in other formats; pictures.
Must not know: how a pattern is recorded, simulated or mapped.
"""

from waystage.patterns.errors import PatternError
from waystage.patterns.kinds import KINDS, Kind
from waystage.patterns.pattern import Pattern, Traffic

__all__ = ["KINDS", "Kind", "Pattern", "PatternError", "Traffic"]
