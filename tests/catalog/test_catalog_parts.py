"""The files of a catalog: what is written is read back, and only what shrinks is compressed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waystage.catalog.parts import PartWriter
from waystage.catalog.schema import DIRECTORIES

ROWS = 20_000
SCHEMA = pa.schema([pa.field("path", pa.binary()), pa.field("bytes", pa.int64())])
NOISE = np.random.default_rng(7).integers(0, 1 << 40, ROWS)


def _table(numbers: np.ndarray) -> pa.Table:
    names = [b"%06d" % number for number in range(len(numbers))]
    return pa.table({"path": names, "bytes": numbers}, schema=SCHEMA)


@pytest.mark.parametrize(
    ("batches", "codec"),
    [([NOISE, NOISE], "UNCOMPRESSED"), ([np.zeros(ROWS, np.int64), NOISE], "ZSTD"), ([np.arange(ROWS) % 7], "ZSTD")],
    ids=["noise", "noise later", "pattern"],
)  # fmt: skip
def test_numbers_are_compressed_unless_the_first_rows_are_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[np.ndarray], codec: str
) -> None:
    monkeypatch.setattr("waystage.catalog.parts.DIRECTORIES", SCHEMA)
    with PartWriter(tmp_path / "part", SCHEMA) as part:
        for batch in batches:
            part.write(_table(batch))
    group = pq.read_metadata(tmp_path / "part").row_group(0)
    assert [group.column(1).compression, group.column(0).compression] == [codec, "ZSTD"]
    read = pq.read_table(tmp_path / "part")["bytes"].to_numpy()
    assert (read == np.concatenate(batches)).all()


def test_a_part_without_rows_is_a_part(tmp_path: Path) -> None:
    with PartWriter(tmp_path / "part", DIRECTORIES):
        pass
    assert pq.read_table(tmp_path / "part").num_rows == 0
