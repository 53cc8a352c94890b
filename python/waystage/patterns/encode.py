"""Writing the pattern file.

Arrives: a pattern, or sections that a profiler wrote.
Leaves: a file, written atomically.
Must not know: other formats.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from waystage.patterns import varints
from waystage.patterns.data import PatternData, Traffic
from waystage.patterns.layout import (
    COLUMNS,
    FINISHED,
    HEADER,
    MAGIC,
    MAJOR,
    MINOR,
    PROTOCOL,
    PULLED,
    RECEIVES,
    SECTION,
    PatternFile,
    RankPart,
)
from waystage.patterns.output import write_whole


def write(pattern: PatternData, path: Path) -> None:
    """See `Pattern.write`."""
    write_file(to_file(pattern), path)


def to_file(pattern: PatternData) -> PatternFile:
    """A pattern split into the sections of its ranks."""
    edges = tuple(round(float(edge) * 1e9) for edge in pattern.phase_edges)
    run = dict(pattern.run)
    start = run.pop("start_unix_ns", "0")
    present = [r for r in range(pattern.ranks) if r not in set(pattern.missing)]
    unfinished = set(pattern.unfinished)
    sent, received = (
        _by_rank(pattern, pattern.sent, sending=True),
        _by_rank(pattern, pattern.received, sending=False),
    )
    empty = tuple(np.zeros(0, dtype=np.uint64) for _ in range(COLUMNS))
    sections = {}
    for rank in present:
        flags = (0 if rank in unfinished else FINISHED) | (RECEIVES if len(pattern.received) else 0)
        part = RankPart(
            rank,
            pattern.nodes[rank],
            flags,
            0,
            edges[-1],
            (),
            sent.get(rank, empty),
            received.get(rank, empty),
        )
        sections[rank] = encode_rank(part)
    return PatternFile(
        pattern.ranks,
        int(start) if start.isdigit() else 0,
        0,
        run,
        pattern.kinds,
        edges,
        pattern.warnings,
        sections,
    )


def format_file(file: PatternFile) -> bytes:
    """A file's bytes."""
    head = HEADER.pack(MAGIC, MAJOR, MINOR, file.ranks, file.start_ns, file.interval_ns, 0, 0)[:-4]
    pieces = [head, struct.pack("<I", zlib.crc32(head))]
    run = b"".join(_text(k) + _text(v) for k, v in sorted(file.run.items()))
    pieces.append(_section(b"RUN ", _numbers(len(file.run)) + run))
    kinds = b"".join(
        _numbers(k.number)
        + _text(k.name)
        + _text(k.group)
        + _numbers(k.pulled * PULLED | k.protocol * PROTOCOL)
        for k in file.kinds
    )
    pieces.append(_section(b"KIND", _numbers(len(file.kinds)) + kinds))
    if file.edges_ns:
        pieces.append(_section(b"PHAS", _numbers(len(file.edges_ns), *file.edges_ns)))
    if file.warnings:
        pieces.append(_section(b"WARN", _numbers(len(file.warnings)) + b"".join(map(_text, file.warnings))))
    pieces += [_section(b"RANK", file.sections[rank]) for rank in sorted(file.sections)]
    pieces.append(end_section())
    return b"".join(pieces)


def write_file(file: PatternFile, path: Path) -> None:
    """Raises PatternError where the file cannot be written."""
    write_whole(path, format_file(file))


def end_section() -> bytes:
    """The last section of every file."""
    return _section(b"END ", b"")


def _by_rank(pattern: PatternData, traffic: Traffic, *, sending: bool) -> dict[int, tuple[varints.U64, ...]]:
    phase, src, dst, kind, size_class, messages, total = traffic.rows()
    pulled = np.array([k.number for k in pattern.kinds if k.pulled], dtype=np.uint32)
    incoming = np.isin(kind, pulled) if sending else np.ones(kind.size, dtype=bool)
    own, peer = np.where(incoming, dst, src), np.where(incoming, src, dst)
    order = np.lexsort((size_class, peer, kind, phase, own))
    columns = [c[order].astype(np.uint64) for c in (phase, peer, kind, size_class, messages, total)]
    ranks, first = np.unique(own[order], return_index=True)
    ends = np.append(first, own.size)[1:]
    return {
        int(rank): tuple(column[a:b] for column in columns)
        for rank, a, b in zip(ranks, first, ends, strict=True)
    }


def encode_rank(part: RankPart) -> bytes:
    """A rank's section, without tag and checksum."""
    head = _numbers(part.rank) + _text(part.node) + _numbers(part.flags, part.doublings, part.duration_ns)
    warnings = _numbers(len(part.warnings)) + b"".join(map(_text, part.warnings))
    return head + warnings + _encode_table(part.sent) + _encode_table(part.received)


def _encode_table(rows: tuple[varints.U64, ...]) -> bytes:
    phase = rows[0] - np.concatenate((np.zeros(1, dtype=np.uint64), rows[0][:-1]))[: rows[0].size]
    # The difference to the row before, which is 0 for the first.
    peers = rows[1].astype(np.int64)
    peer = varints.zigzag(peers - np.concatenate((np.zeros(1, dtype=np.int64), peers[:-1]))[: peers.size])
    pieces = [_numbers(rows[0].size)]
    for column in (phase, peer, *rows[2:]):
        encoded = varints.encode(column)
        pieces += [_numbers(len(encoded)), encoded]
    return b"".join(pieces)


def _numbers(*values: int) -> bytes:
    return varints.encode(np.array(values, dtype=np.uint64))


def _text(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _numbers(len(raw)) + raw


def _section(tag: bytes, content: bytes) -> bytes:
    return SECTION.pack(tag, zlib.crc32(content, zlib.crc32(tag)), len(content)) + content
