"""Joining the parts that the ranks of an aborted run left.

Arrives: pattern files of one run, each with some of its ranks.
Leaves: one file with all of them.
Must not know: why there are parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from waystage.patterns.encode import write_file
from waystage.patterns.errors import PatternError
from waystage.patterns.layout import PatternFile
from waystage.patterns.parse import assemble, parse_file
from waystage.patterns.pattern import Pattern

APART_NS = 600 * 10**9
"""Ranks of one run begin within seconds, though their hosts' clocks may differ; runs of a day are further apart."""


def merge(paths: Sequence[Path], output: Path) -> Pattern:
    """Write the files' ranks to `output`. Raises PatternError where they are not of one run."""
    if not paths:
        raise PatternError(
            "there is nothing to merge: name the parts, as in 'waystage pattern merge run.part-*'"
        )
    whole: PatternFile | None = None
    first = ""
    origin: dict[int, str] = {}
    for path in paths:
        try:
            found = parse_file(path.read_bytes(), str(path))
        except OSError as error:
            raise PatternError(f"{path} cannot be read: {error.strerror}") from None
        if whole is None:
            whole, first = found, str(path)
        elif not _same_run(whole, found):
            raise PatternError(f"{path} and {first} are of different runs: merge the parts of one run")
        for rank in found.sections:
            if rank in origin:
                raise PatternError(f"rank {rank} is in {origin[rank]} and in {path}: leave one of them out")
            origin[rank] = str(path)
        starts = [s for s in (whole.start_ns, found.start_ns) if s]
        whole = replace(whole, start_ns=min(starts, default=0), sections={**whole.sections, **found.sections})
    assert whole is not None
    pattern = assemble(whole, str(output), allow_missing=True)
    write_file(whole, output)
    return pattern


def _same_run(one: PatternFile, other: PatternFile) -> bool:
    def fixed(file: PatternFile) -> tuple[object, ...]:
        return file.ranks, file.interval_ns, file.kinds, file.edges_ns, file.run.get("mpi")

    return fixed(one) == fixed(other) and abs(one.start_ns - other.start_ns) <= APART_NS
