"""Reading the pattern file.

Arrives: a file's bytes.
Leaves: a pattern, or one sentence about what is wrong with the bytes.
Must not know: other formats.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from waystage.patterns import varints
from waystage.patterns.agreement import disagreement
from waystage.patterns.data import PatternData, Traffic
from waystage.patterns.errors import PatternError
from waystage.patterns.kinds import KINDS, SIZE_CLASSES, SIZE_UNKNOWN, Kind
from waystage.patterns.layout import (
    COLUMNS,
    FINISHED,
    HEADER,
    MAGIC,
    MAJOR,
    MOST_PHASES,
    MOST_RANKS,
    PROTOCOL,
    PULLED,
    RECEIVES,
    SECTION,
    PatternFile,
    RankPart,
    missing_message,
)


def parse(data: bytes, name: str, *, allow_missing: bool) -> PatternData:
    """The pattern in `data`. Raises PatternError, whose message begins with `name`."""
    return assemble(parse_file(data, name), name, allow_missing=allow_missing)


def parse_file(data: bytes, name: str) -> PatternFile:
    """A file's sections, checked but not decoded. Raises PatternError."""
    if not data:
        raise PatternError(f"{name} is empty: the profiled program may not have reached MPI_Init")
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise PatternError(f"{name} is no pattern file: it begins with other bytes")
    if len(data) < HEADER.size:
        raise PatternError(f"{name} is truncated: it ends within its header")
    _, major, _, ranks, start_ns, interval_ns, _, crc = HEADER.unpack_from(data)
    if major != MAJOR:
        raise PatternError(f"{name} has format version {major}, and this Waystage reads version {MAJOR}")
    if zlib.crc32(data[: HEADER.size - 4]) != crc:
        raise PatternError(f"{name} is damaged: its header's checksum is wrong")
    if not 1 <= ranks <= MOST_RANKS:
        raise PatternError(f"{name} is damaged: it says that there were {ranks} ranks")
    run: dict[str, str] = {}
    kinds: tuple[Kind, ...] = KINDS
    edges: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    sections: dict[int, bytes] = {}
    for tag, content in _sections(data, name):
        try:
            reader = _Reader(content)
            if tag == b"RANK":
                rank = reader.number()
                if rank >= ranks or rank in sections:
                    raise ValueError(f"rank {rank} is there twice or beyond the {ranks} ranks")
                sections[rank] = content
            elif tag == b"RUN ":
                run = {reader.text(): reader.text() for _ in range(reader.count())}
            elif tag == b"KIND":
                kinds = tuple(_kind(reader) for _ in range(reader.count()))
            elif tag == b"WARN":
                warnings = tuple(reader.text() for _ in range(reader.count()))
            elif tag == b"PHAS":
                edges = tuple(reader.number() for _ in range(reader.count()))
        except ValueError as error:
            label = tag.decode("ascii", "replace").strip()
            raise PatternError(f"{name} is damaged: section {label!r}: {error}") from None
    return PatternFile(ranks, start_ns, interval_ns, run, kinds, edges, warnings, sections)


def assemble(file: PatternFile, name: str, *, allow_missing: bool) -> PatternData:
    """Decode and join the ranks' sections. Raises PatternError."""
    missing = tuple(r for r in range(file.ranks) if r not in file.sections) if allow_missing else ()
    if not allow_missing and len(file.sections) < file.ranks:
        raise PatternError(missing_message(name, file.ranks, file.sections))
    parts = []
    for rank in sorted(file.sections):
        try:
            parts.append(_rank(file.sections[rank], file.ranks))
        except ValueError as error:
            raise PatternError(f"{name} is damaged: rank {rank}: {error}") from None
    doublings = max((part.doublings for part in parts), default=0)
    pulled = np.array([k.number for k in file.kinds if k.pulled], dtype=np.uint64)
    sent, received = (_join(parts, which, doublings, pulled) for which in ("sent", "received"))
    last = max((int(t.phase[-1]) for t in (sent, received) if len(t)), default=0)
    nodes = dict.fromkeys(range(file.ranks), "") | {part.rank: part.node for part in parts}
    unknown = set(np.unique(np.concatenate((sent.kind, received.kind))).tolist()) - {
        k.number for k in file.kinds
    }
    if unknown:
        raise PatternError(f"{name} is damaged: its table of kinds lacks number {min(unknown)}")
    end_ns = max((part.duration_ns for part in parts), default=0)
    try:
        edges = _edges(file, last, doublings, end_ns)
    except ValueError as error:
        raise PatternError(f"{name} is damaged: {error}") from None
    silent = set(range(file.ranks)) - {part.rank for part in parts if part.flags & RECEIVES}
    return PatternData(
        ranks=file.ranks,
        sent=sent,
        received=received,
        phase_edges=edges,
        nodes=tuple(nodes.values()),
        kinds=file.kinds,
        missing=missing,
        unfinished=tuple(part.rank for part in parts if not part.flags & FINISHED),
        warnings=(*file.warnings, *_warnings(parts, file.ranks)),
        run={**file.run, **({"start_unix_ns": str(file.start_ns)} if file.start_ns else {})},
        differs=disagreement(sent, received, file.kinds, file.ranks, silent) or "",
    )


def _sections(data: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    at, seen = HEADER.size, 0
    while True:
        if at + SECTION.size > len(data):
            raise PatternError(f"{name} is truncated: it ends after {seen} sections without an end mark")
        tag, crc, length = SECTION.unpack_from(data, at)
        at += SECTION.size
        if length > len(data) - at:
            raise PatternError(f"{name} is truncated: it ends within section {seen + 1}")
        content = data[at : at + length]
        if zlib.crc32(content, zlib.crc32(tag)) != crc:
            raise PatternError(f"{name} is damaged: the checksum of section {seen + 1} is wrong")
        at += length
        if tag == b"END ":
            if at != len(data):
                raise PatternError(f"{name} is damaged: {len(data) - at} bytes follow its end mark")
            return
        seen += 1
        yield tag, content


class _Reader:
    """Numbers and texts of a section, one after another. Raises ValueError."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * varints.MAX_BYTES:
                raise ValueError("a number has more than 64 bits")
        if value >> 64:
            raise ValueError("a number has more than 64 bits")
        return value

    def count(self) -> int:
        """Of things that take at least a byte each."""
        number = self.number()
        if number > len(self._content) - self._at:
            raise ValueError(f"it announces {number} entries and ends before them")
        return number

    def text(self) -> str:
        return self.take(self.number()).decode("utf-8", "replace")

    def take(self, length: int) -> bytes:
        if length > len(self._content) - self._at:
            raise ValueError("it ends too early")
        self._at += length
        return self._content[self._at - length : self._at]

    def end(self) -> None:
        if self._at != len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes too many")


def _kind(reader: _Reader) -> Kind:
    number, name, group, flags = reader.number(), reader.text(), reader.text(), reader.number()
    if number >= 1 << 16:
        raise ValueError(f"kind number {number} is too large")
    return Kind(number, name, group, bool(flags & PULLED), bool(flags & PROTOCOL))


def _rank(content: bytes, ranks: int) -> RankPart:
    reader = _Reader(content)
    rank, node, flags = reader.number(), reader.text(), reader.number()
    doublings, duration_ns = reader.number(), reader.number()
    if doublings > 40:
        raise ValueError(f"its phases were doubled {doublings} times")
    warnings = tuple(reader.text() for _ in range(reader.count()))
    sent, received = _table(reader, ranks), _table(reader, ranks)
    reader.end()
    return RankPart(rank, node, flags, doublings, duration_ns, warnings, sent, received)


def _table(reader: _Reader, ranks: int) -> tuple[varints.U64, ...]:
    rows = reader.count()
    columns = [varints.decode(reader.take(reader.number()), rows) for _ in range(COLUMNS)]
    phase = np.cumsum(columns[0], dtype=np.uint64)
    peer = np.cumsum(varints.unzigzag(columns[1]), dtype=np.int64)
    if rows and (np.any(columns[0] >= MOST_PHASES) or int(phase.max()) >= MOST_PHASES):
        raise ValueError(f"it has more than {MOST_PHASES} phases")
    if rows and (int(peer.min()) < 0 or int(peer.max()) >= ranks):
        raise ValueError(f"it names a peer beyond the {ranks} ranks")
    if rows and int(columns[2].max()) >= 1 << 16:
        raise ValueError("it has a kind that is too large")
    if np.any((columns[3] >= SIZE_CLASSES) & (columns[3] != SIZE_UNKNOWN)):
        raise ValueError("it has a class of sizes that does not exist")
    # Sums over all ranks stay below 2^64.
    if rows and max(int(columns[4].max()), int(columns[5].max())) >= 1 << 62:
        raise ValueError("it has a count that cannot be true")
    return (phase, peer.astype(np.uint64), *columns[2:])


def _join(parts: Sequence[RankPart], which: str, doublings: int, pulled: varints.U64) -> Traffic:
    tables = [part.sent if which == "sent" else part.received for part in parts]
    if not tables:
        return Traffic.from_rows([], [], [], [], [], [], [])
    columns = [np.concatenate([table[i] for table in tables]) for i in range(COLUMNS)]
    shift = np.concatenate(
        [
            np.full(t[0].size, doublings - p.doublings, dtype=np.uint64)
            for p, t in zip(parts, tables, strict=True)
        ]
    )
    own = np.concatenate(
        [np.full(t[0].size, p.rank, dtype=np.uint64) for p, t in zip(parts, tables, strict=True)]
    )
    phase, peer, kind, size_class, messages, total = columns
    incoming = np.isin(kind, pulled) if which == "sent" else np.ones(kind.size, dtype=bool)
    src, dst = np.where(incoming, peer, own), np.where(incoming, own, peer)
    return Traffic.from_rows(phase >> shift, src, dst, kind, size_class, messages, total)


def _edges(file: PatternFile, last: int, doublings: int, end_ns: int) -> NDArray[np.float64]:
    if file.edges_ns:
        if len(file.edges_ns) < last + 2 or any(
            b < a for a, b in zip(file.edges_ns, file.edges_ns[1:], strict=False)
        ):
            raise ValueError("its phases are out of order or too few")
        return np.asarray(file.edges_ns, dtype=np.float64) / 1e9
    width = file.interval_ns << doublings
    if width == 0:
        if last > 0:
            raise ValueError("it has several phases and no interval")
        return np.array([0.0, end_ns / 1e9])
    count = max(last + 1, min(-(-end_ns // width), MOST_PHASES))
    edges = np.arange(count + 1, dtype=np.float64) * (width / 1e9)
    if end_ns / 1e9 > edges[-2]:
        edges[-1] = min(edges[-1], end_ns / 1e9)
    return edges


def _warnings(parts: Sequence[RankPart], ranks: int) -> tuple[str, ...]:
    """Each sentence once, with the ranks that gave it where not all did."""
    by_text: dict[str, list[int]] = {}
    for part in parts:
        for text in part.warnings:
            by_text.setdefault(text, []).append(part.rank)
    said = []
    for text, ranks_of in by_text.items():
        if len(ranks_of) in (ranks, len(parts)):
            said.append(text)
        else:
            listed = ", ".join(map(str, ranks_of[:3])) + (", ..." if len(ranks_of) > 3 else "")
            said.append(f"{text} (rank {listed})")
    return tuple(said)
