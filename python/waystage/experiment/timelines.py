"""Link use over the time of a run, in columns.

Arrives: samples or columns of what left ports; the file of an earlier run.
Leaves: samples, all or those of a policy, set or kind of port; the file.
Must not know: who counted, what is drawn.

A large fabric has a million samples, of which a report draws those of one set. The alternative, a list of them, took as
long to make and to write as a tenth of the simulation of a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from waystage.outputs import written

if TYPE_CHECKING:
    import pyarrow as pa

MOST_S = 1e9
"""Times of a run are below; a damaged file may hold anything."""


class PortSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What left `node` through `port` (towards `peer`) in one class over an interval ending at `at_s`.

    `traffic` is a class, or `all` for the port's own counter. `core`: the node is a core switch.
    """

    policy: str
    set: int
    at_s: float
    interval_s: float
    node: str
    port: int
    peer: str
    traffic: str
    bytes: int
    core: bool = True


class Timelines(Sequence[PortSample]):
    """Samples as the rows of a table. Each is made when it is read."""

    def __init__(self, table: pa.Table) -> None:
        """`table` has the columns of `kinds`, in this order."""
        self._table = table

    @classmethod
    def of(cls, samples: Sequence[PortSample]) -> Timelines:
        """`samples` themselves where they are such."""
        if isinstance(samples, Timelines):
            return samples
        fields = PortSample.__struct_fields__
        return cls.of_columns({name: [getattr(sample, name) for sample in samples] for name in fields})

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> Timelines:
        """By the fields of `PortSample`, each an array or a list."""
        import pyarrow as pa

        return cls(pa.table({name: pa.array(columns[name], kind) for name, kind in kinds().items()}))

    @classmethod
    def read(cls, path: Path) -> Timelines:
        """The samples of a file. Raises OSError, ArrowException, or ValueError where it is no file of timelines."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Not mapped into memory: the folder may be written anew meanwhile.
        table = pq.read_table(path)
        if "core" not in table.column_names:  # of an older version, which kept core switches alone
            table = table.append_column("core", pa.array(np.ones(len(table), dtype=np.bool_)))
        columns = {name: _checked(table, name, kind) for name, kind in kinds().items()}
        return cls(pa.table(columns))

    def save(self, path: Path) -> None:
        """One row a sample."""
        import pyarrow.parquet as pq

        with written(path) as file:
            pq.write_table(self._table, file, compression="zstd")

    def where(self, **equal: str | int | bool) -> Timelines:
        """The samples of which each of these fields has this value."""
        import pyarrow.compute as pc

        table = self._table
        for name, value in equal.items():
            table = table.filter(pc.equal(table[name], value))
        return Timelines(table)

    def distinct(self, name: str) -> list[Any]:
        """The values of a field, in the order of their first sample."""
        found: list[Any] = self._table[name].unique().to_pylist()
        return found

    def busiest(self, most: int) -> list[tuple[str, int, str]]:
        """(node, port, peer) of the ports that sent most, in the order of their names."""
        sent = self._table.group_by(["node", "port", "peer"]).aggregate([("bytes", "sum")]).to_pylist()
        ports = {(row["node"], row["port"], row["peer"]): row["bytes_sum"] for row in sent}
        return sorted(sorted(ports, key=lambda port: (-ports[port], port))[:most])

    def numbers(self, name: str) -> NDArray[Any]:
        """A field of all samples."""
        found: NDArray[Any] = self._table[name].to_numpy()
        return found

    def are_times_sane(self) -> bool:
        """Whether all times are numbers, and of a length that a run can have."""
        at_s, interval_s = self.numbers("at_s"), self.numbers("interval_s")
        long = np.abs(at_s) <= MOST_S
        return bool(np.all(long & (interval_s >= 0) & (interval_s <= MOST_S)))  # also of what is no number

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[PortSample]:
        # Column by column: a large fabric has a million rows.
        columns = [self._table[name].to_pylist() for name in PortSample.__struct_fields__]
        for policy, number, at_s, interval_s, node, port, peer, traffic, count, core in zip(
            *columns, strict=True
        ):
            yield PortSample(
                policy=policy,
                set=number,
                at_s=at_s,
                interval_s=interval_s,
                node=node,
                port=port,
                peer=peer,
                traffic=traffic,
                bytes=count,
                core=core,
            )

    @overload
    def __getitem__(self, at: int) -> PortSample: ...
    @overload
    def __getitem__(self, at: slice) -> Timelines: ...
    def __getitem__(self, at: int | slice) -> PortSample | Timelines:
        if isinstance(at, slice):
            return Timelines(self._table.take(list(range(*at.indices(len(self))))))
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        row = self._table.slice(at % len(self), 1)
        return next(iter(Timelines(row)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Timelines):
            return bool(self._table.equals(other._table))
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def kinds() -> dict[str, Any]:
    """The columns of the file and their types, in the order of the fields of `PortSample`."""
    import pyarrow as pa

    known = {
        "set": pa.int32(),
        "port": pa.int32(),
        "bytes": pa.int64(),
        "at_s": pa.float64(),
        "interval_s": pa.float64(),
        "core": pa.bool_(),
    }
    return {name: known.get(name, pa.string()) for name in PortSample.__struct_fields__}


def named(names: Sequence[str], numbers: NDArray[np.integer[Any]]) -> ArrayLike:
    """A column of `names[number]` for each number."""
    import pyarrow as pa

    kind = pa.dictionary(pa.int32(), pa.string())
    codes = pa.array(numbers, pa.int32())
    column: ArrayLike = pa.DictionaryArray.from_arrays(
        codes, pa.array(names, kind.value_type)
    ).dictionary_decode()
    return column


def _checked(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in the type that it should have. Raises ValueError where it holds anything else."""
    import pyarrow.types as types

    if name not in table.column_names:
        raise ValueError(f"column {name} is missing")
    column = table[name]
    same = next(
        test
        for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_string)
        if test(kind)
    )
    if not (same(column.type) or (same is types.is_string and types.is_large_string(column.type))):
        raise ValueError(f"column {name} is of {column.type}, not of {kind}")
    if column.null_count:
        raise ValueError(f"column {name} has rows without a value")
    return column.cast(kind)
