"""Parts of deduplication profiles, damaged: what was written, or DedupPartError, and nothing else.

The parser's own properties are tested beside it in Rust; this goes the way that a user's bytes go.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystage._native import DedupPartError, dedup_merge
from waystage.dedup import DedupOptions, make_parts
from waystage.ranks import Rank

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100"))


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("dedup")
    (folder / "tree").mkdir()
    noise = random.Random(2).randbytes(60_000)
    for name in ("a.txt", "b.bin", "c"):
        (folder / "tree" / name).write_bytes(noise + bytes(70_000))
    made, _ = make_parts(folder / "tree", folder / "parts", 1, Rank(), DedupOptions(threads=1))
    return made[0].read_bytes()


def test_damaged_parts_are_errors(part: bytes, tmp_path: Path) -> None:
    path = tmp_path / "part"

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        damaged = bytearray(part)
        for _ in range(data.draw(st.integers(0, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(damaged)))
            damaged[at:at] = data.draw(st.binary(max_size=40))
        if data.draw(st.booleans()):
            del damaged[data.draw(st.integers(0, len(damaged))) :]
        path.write_bytes(damaged)
        try:
            _, report = dedup_merge([path], lambda chunks: None)
        except DedupPartError:
            assert bytes(damaged) != part
            return
        assert bytes(damaged) == part
        assert report["all"]["bytes"] == 390_000

    check()
