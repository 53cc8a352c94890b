"""Traces of the original profiler: a `tar.gz` with a JSON file for each rank.

Arrives: the archive's path.
Leaves: a pattern.
Must not know: other formats.

A rank's file has `rank`, `n_procs`, `processor_name`, and for each peer `tx_bytes`, `tx_messages`, `rx_bytes` and
`rx_messages`. There is one phase and one kind; sizes are recorded for a rank as a whole and not by peer, so they
are not taken over.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.patterns.agreement import disagreement
from waystage.patterns.data import PatternData, Traffic
from waystage.patterns.errors import PatternError
from waystage.patterns.kinds import KINDS, SIZE_UNKNOWN, UNSPLIT
from waystage.patterns.layout import MOST_RANKS, missing_message

MOST_BYTES_A_RANK = 1 << 28
"""A rank's file of 100,000 ranks has some megabytes; past this it is none."""

MOST_BYTES_A_HEADER = 1 << 20
"""Long names and attributes of a member are members too; tarfile reads them into memory completely."""

MOST_BYTES = 1 << 32
"""Of all members, unpacked: a few megabytes of gzip can stand for more than any disk holds."""

I64 = NDArray[np.int64]

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _RankFile(msgspec.Struct):
    rank: Count
    n_procs: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    tx_bytes: list[Count]
    tx_messages: list[Count]
    rx_bytes: list[Count] = []
    rx_messages: list[Count] = []
    processor_name: str = ""
    description: str = ""


class _Bounded(io.RawIOBase):
    """The unpacked archive, up to MOST_BYTES."""

    def __init__(self, packed: IO[bytes], name: str) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._name = name
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """A header that announces more than there may be must not be believed."""
        if size < 0 or size > self._left:
            raise PatternError(
                f"{self._name} unpacks to more than {MOST_BYTES >> 30} GiB: give the trace of fewer ranks"
            )
        found = self._stream.read(size)
        self._left -= len(found)
        return found


class _Member(tarfile.TarInfo):
    """A member whose header is believed as far as a header can sensibly go."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in tarfile.REGULAR_TYPES and found.size > MOST_BYTES_A_HEADER:
            raise PatternError(
                "an archive's member has a header of more than 1 MiB: pack the ranks' files anew"
            )
        return found


class _Counts(msgspec.Struct):
    """Of one rank and direction: the peers that have any, and what they have."""

    peers: I64
    messages: I64
    bytes: I64


class _Rank(msgspec.Struct):
    ranks: int
    node: str
    description: str
    sent: _Counts
    received: _Counts | None


def read_original(path: Path, *, allow_missing: bool) -> PatternData:
    """Raises PatternError where the archive is damaged, or lacks ranks and `allow_missing` is false."""
    by_rank: dict[int, _Rank] = {}
    decoder = msgspec.json.Decoder(_RankFile)
    for name, data in _members(path):
        found = _checked(decoder, data, f"{path}: {name}")
        if found.rank in by_rank:
            raise PatternError(f"{path}: rank {found.rank} is there twice")
        by_rank[found.rank] = _packed(found)
    return _pattern(by_rank, path, allow_missing)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The JSON files of an archive, in its order, one at a time. Raises PatternError."""
    try:
        with (
            path.open("rb") as packed,
            tarfile.open(fileobj=_Bounded(packed, str(path)), mode="r|", tarinfo=_Member) as archive,
        ):
            for member in archive:
                if not member.isfile() or not member.name.endswith(".json"):
                    continue
                if member.size > MOST_BYTES_A_RANK:
                    raise PatternError(f"{path}: {member.name} is too large for a rank's file")
                stream = archive.extractfile(member)
                if stream is not None:
                    yield member.name, stream.read()
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, PatternError):
            raise
        raise PatternError(f"{path} is no readable tar.gz: {str(error)[:100] or 'it is damaged'}") from None
    except OSError as error:
        # A damaged gzip stream is an OSError without a number.
        raise PatternError(f"{path} cannot be read: {error.strerror or str(error)[:100]}") from None


def _packed(found: _RankFile) -> _Rank:
    """Without the zeros: the lists of n ranks have n^2 entries, most of them 0."""

    def counts(messages: list[int], total: list[int]) -> _Counts:
        columns = [np.asarray(values, dtype=np.int64) for values in (messages, total)]
        there = np.flatnonzero((columns[0] > 0) | (columns[1] > 0))
        return _Counts(there, columns[0][there], columns[1][there])

    return _Rank(
        ranks=found.n_procs,
        node=found.processor_name,
        description=found.description,
        sent=counts(found.tx_messages, found.tx_bytes),
        received=counts(found.rx_messages, found.rx_bytes) if found.rx_bytes else None,
    )


def _checked(decoder: msgspec.json.Decoder[_RankFile], data: bytes, where: str) -> _RankFile:
    try:
        found = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PatternError(f"{where} is no rank's file: {str(error)[:100]}") from None
    if found.rank >= found.n_procs:
        raise PatternError(f"{where} is of rank {found.rank}, and there are {found.n_procs} ranks")
    for name in ("tx_bytes", "tx_messages", "rx_bytes", "rx_messages"):
        length = len(getattr(found, name))
        if length != found.n_procs and not (name.startswith("rx") and length == 0):
            raise PatternError(f"{where}: {name} has {length} entries for {found.n_procs} ranks")
    if len(found.rx_bytes) != len(found.rx_messages):
        raise PatternError(f"{where}: rx_bytes and rx_messages differ in length")
    return found


def _pattern(by_rank: dict[int, _Rank], path: Path, allow_missing: bool) -> PatternData:
    if not by_rank:
        raise PatternError(f"{path} holds no rank's JSON file")
    sizes = {found.ranks for found in by_rank.values()}
    if len(sizes) > 1:
        raise PatternError(f"{path} mixes runs of {' and '.join(map(str, sorted(sizes)))} ranks")
    ranks = sizes.pop()
    if len(by_rank) < ranks and not allow_missing:
        raise PatternError(missing_message(str(path), ranks, by_rank))
    description = by_rank[min(by_rank)].description
    sent = _traffic({rank: found.sent for rank, found in by_rank.items()}, sending=True)
    counted = {rank: found.received for rank, found in by_rank.items() if found.received is not None}
    received = _traffic(counted, sending=False)
    kinds = (UNSPLIT, *KINDS[1:])
    differs = disagreement(sent, received, kinds, ranks, (r for r in range(ranks) if r not in counted))
    sizes_unknown = "sizes of messages were recorded for each rank and not for each pair: there are none here"
    return PatternData(
        ranks=ranks,
        sent=sent,
        received=received,
        phase_edges=np.array([0.0, 0.0]),
        nodes=tuple(by_rank[r].node if r in by_rank else "" for r in range(ranks)),
        kinds=kinds,
        missing=tuple(r for r in range(ranks) if r not in by_rank),
        warnings=(sizes_unknown,),
        run={"profiler": description} if description else {},
        differs=differs or "",
        order=tuple(by_rank),
    )


def _traffic(by_rank: dict[int, _Counts], *, sending: bool) -> Traffic:
    none = np.zeros(0, dtype=np.int64)
    mine = np.concatenate(
        [none, *(np.full(c.peers.size, rank, dtype=np.int64) for rank, c in by_rank.items())]
    )
    theirs = np.concatenate([none, *(counts.peers for counts in by_rank.values())])
    src, dst = (mine, theirs) if sending else (theirs, mine)
    rows = mine.size
    return Traffic.from_rows(
        np.zeros(rows, dtype=np.uint32),
        src,
        dst,
        np.full(rows, UNSPLIT.number, dtype=np.uint32),
        np.full(rows, SIZE_UNKNOWN, dtype=np.uint32),
        np.concatenate([none, *(counts.messages for counts in by_rank.values())]),
        np.concatenate([none, *(counts.bytes for counts in by_rank.values())]),
    )
