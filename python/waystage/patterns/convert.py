"""A pattern in other formats.

Arrives: a pattern and the name of a file, whose extension selects the format.
Leaves: the file, written atomically.
Must not know: who reads it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from waystage.patterns.errors import PatternError
from waystage.patterns.output import write_whole
from waystage.patterns.pattern import Pattern

MOST_RANKS_DENSE = 4096
"""The original's format has a number for every pair, used or not."""

COLUMNS = ("phase", "src", "dst", "kind", "messages", "bytes")


def convert(pattern: Pattern, path: Path) -> None:
    """Write `pattern` in the format of the path's extension. Raises PatternError."""
    for ending, encode in FORMATS.items():
        if path.name.endswith(ending):
            write_whole(path, encode(pattern))
            return
    raise PatternError(f"{path}: its ending tells no format: use one of {', '.join(FORMATS)}")


def to_csv(pattern: Pattern) -> bytes:
    """A line for each row, the kind by name."""
    names = {kind.number: kind.name for kind in pattern.kinds}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for phase, src, dst, kind, messages, total in _rows(pattern):
        writer.writerow((phase, src, dst, names[kind], messages, total))
    return text.getvalue().encode()


def to_json(pattern: Pattern) -> bytes:
    """One object; its `pairs` are in columns."""
    names = {kind.number: kind.name for kind in pattern.kinds}
    pairs: dict[str, list[int | str]] = {name: [] for name in COLUMNS}
    for phase, src, dst, kind, messages, total in _rows(pattern):
        row: tuple[int | str, ...] = (phase, src, dst, names[kind], messages, total)
        for name, cell in zip(COLUMNS, row, strict=True):
            pairs[name].append(cell)
    value = {
        "ranks": pattern.ranks,
        "nodes": list(pattern.nodes),
        "phase_edges_s": [float(edge) for edge in pattern.phase_edges],
        "run": dict(pattern.run),
        "warnings": list(pattern.warnings),
        "missing": list(pattern.missing),
        "unfinished": list(pattern.unfinished),
        "pairs": pairs,
    }
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def to_npz(pattern: Pattern) -> bytes:
    """NumPy arrays: the columns and the sizes of what was sent, phases, nodes, names of kinds."""
    sent, out = pattern.sent, io.BytesIO()
    np.savez_compressed(
        out,
        phase=sent.phase,
        src=sent.src,
        dst=sent.dst,
        kind=sent.kind,
        messages=sent.messages,
        bytes=sent.bytes,
        size_row=sent.size_row,
        size_class=sent.size_class,
        size_messages=sent.size_messages,
        size_bytes=sent.size_bytes,
        phase_edges=pattern.phase_edges,
        nodes=np.array(pattern.nodes),
        kind_numbers=np.array([kind.number for kind in pattern.kinds]),
        kind_names=np.array([kind.name for kind in pattern.kinds]),
    )
    return out.getvalue()


def to_original(pattern: Pattern) -> bytes:
    """The original profiler's `tar.gz`: totals over phases and kinds. Received equals sent."""
    if pattern.ranks > MOST_RANKS_DENSE:
        raise PatternError(f"the original's format would need {pattern.ranks**2} numbers: convert to another")
    messages, total = pattern.matrix("messages"), pattern.matrix("bytes")
    raw = io.BytesIO()
    # Without times and names of users: equal patterns give equal bytes.
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for rank in range(pattern.ranks):
            content = {
                "rank": rank,
                "n_procs": pattern.ranks,
                "processor_name": pattern.nodes[rank],
                "tx_bytes": total[rank].tolist(),
                "tx_messages": messages[rank].tolist(),
                "rx_bytes": total[:, rank].tolist(),
                "rx_messages": messages[:, rank].tolist(),
                "tx_message_sizes": [],
                "rx_message_sizes": [],
            }
            data = json.dumps(content, sort_keys=True).encode()
            member = tarfile.TarInfo(f"result{rank}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return raw.getvalue()


def to_pattern(pattern: Pattern) -> bytes:
    """This project's format."""
    from waystage.patterns.encode import format_file, to_file

    return format_file(to_file(pattern))


FORMATS: dict[str, Callable[[Pattern], bytes]] = {
    ".pattern": to_pattern,
    ".csv": to_csv,
    ".json": to_json,
    ".npz": to_npz,
    ".tar.gz": to_original,
}


def _rows(pattern: Pattern) -> list[tuple[int, int, int, int, int, int]]:
    columns = [getattr(pattern.sent, name).tolist() for name in COLUMNS]
    return list(zip(*columns, strict=True))
