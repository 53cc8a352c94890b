"""Joining the parts that the ranks of an aborted run left.

Arrives: pattern files of one run, each with some of its ranks; counters of ranks that were killed.
Leaves: one file with all of them.
Must not know: why there are parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from waystage.bounded import read_bounded
from waystage.patterns.data import PatternData
from waystage.patterns.encode import write_file
from waystage.patterns.errors import PatternError
from waystage.patterns.layout import PatternFile
from waystage.patterns.live import is_live, parse_live
from waystage.patterns.parse import assemble, parse_file
from waystage.patterns.reading import MOST_BYTES

APART_NS = 600 * 10**9
"""Ranks of one run begin within seconds, though their hosts' clocks may differ; runs of a day are further apart."""


def merge(paths: Sequence[Path], output: Path) -> PatternData:
    """Write the files' ranks to `output`. Raises PatternError where they are not of one run."""
    if not paths:
        raise PatternError(
            "there is nothing to merge: name the parts, as in 'waystage pattern merge run.part-*'"
        )
    whole: PatternFile | None = None
    first = ""
    origin: dict[int, tuple[Path, bool]] = {}
    for path in paths:
        found, live = _read(path)
        if whole is None:
            whole, first = found, str(path)
        elif not _same_run(whole, found):
            raise PatternError(f"{path} and {first} are of different runs: merge the parts of one run")
        sections = dict(found.sections)
        for rank in found.sections:
            if rank in origin:
                before, before_live = origin[rank]
                if live == before_live:
                    raise PatternError(f"rank {rank} is in {before} and in {path}: leave one of them out")
                # A rank that left its part may have gone on, and one that went on may have been killed.
                if _messages(found, rank) <= _messages(whole, rank):
                    del sections[rank]
                    continue
            origin[rank] = path, live
        starts = [s for s in (whole.start_ns, found.start_ns) if s]
        whole = replace(whole, start_ns=min(starts, default=0), sections={**whole.sections, **sections})
    assert whole is not None
    pattern = assemble(whole, str(output), allow_missing=True)
    write_file(whole, output)
    return pattern


def _read(path: Path) -> tuple[PatternFile, bool]:
    """A part, and whether it is a killed rank's counters."""
    try:
        data = read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise PatternError(f"{path} cannot be read: {error.strerror}") from None
    if is_live(data):
        return parse_live(data, str(path)), True
    return parse_file(data, str(path)), False


def _messages(file: PatternFile, rank: int) -> int:
    only = replace(file, sections={rank: file.sections[rank]})
    pattern = assemble(only, str(rank), allow_missing=True)
    return sum(int(traffic.messages.sum()) for traffic in (pattern.sent, pattern.received))


def _same_run(one: PatternFile, other: PatternFile) -> bool:
    def fixed(file: PatternFile) -> tuple[object, ...]:
        return file.ranks, file.interval_ns, file.kinds, file.edges_ns, file.run.get("mpi")

    return fixed(one) == fixed(other) and abs(one.start_ns - other.start_ns) <= APART_NS
