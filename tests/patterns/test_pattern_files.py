"""Pattern files: what is written is read again, and what is wrong with a file is said in one sentence."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waystage.patterns import KINDS, Pattern, PatternError, Traffic, varints
from waystage.patterns.encode import format_file, to_file
from waystage.patterns.layout import HEADER
from waystage.patterns.parse import parse, parse_file
from waystage.patterns.phases import by_change

NUMBERS = {kind.name: kind.number for kind in KINDS}
NOTHING = Traffic.from_rows([], [], [], [], [], [], [])
COLUMNS = (
    "phase",
    "src",
    "dst",
    "kind",
    "messages",
    "bytes",
    "size_row",
    "size_class",
    "size_messages",
    "size_bytes",
)

Row = tuple[int, int, int, str, int, int, int]


def pattern_of(ranks: int, rows: list[Row], phases: int = 1, **more: Any) -> Pattern:
    """Rows are phase, source, destination, kind, class of size, messages, bytes."""
    columns = [[row[i] for row in rows] for i in range(7)]
    columns[3] = [NUMBERS[str(name)] for name in columns[3]]
    given: dict[str, Any] = {
        "received": NOTHING,
        "phase_edges": np.arange(phases + 1, dtype=np.float64),
        "nodes": tuple(f"n{rank // 2}" for rank in range(ranks)),
    }
    return Pattern(ranks=ranks, sent=Traffic.from_rows(*columns), **{**given, **more})


SMALL = pattern_of(
    4,
    [
        (0, 0, 1, "p2p", 4, 2, 20),
        (0, 0, 1, "p2p", 11, 1, 1024),
        (1, 2, 3, "bcast", 0, 5, 0),
        (1, 3, 0, "get", 4, 1, 8),
    ],
    phases=2,
    warnings=("something is missing",),
    run={"program": "x", "mpi": "Open MPI v4.1.4"},
    unfinished=(2,),
)


def bytes_of(pattern: Pattern) -> bytes:
    return format_file(to_file(pattern))


def assert_same(one: Pattern, other: Pattern) -> None:
    for name in COLUMNS:
        assert np.array_equal(getattr(one.sent, name), getattr(other.sent, name)), name
        assert np.array_equal(getattr(one.received, name), getattr(other.received, name)), name
    for name in ("ranks", "nodes", "kinds", "missing", "unfinished", "warnings", "run"):
        assert getattr(one, name) == getattr(other, name), name
    assert np.allclose(one.phase_edges, other.phase_edges)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    SMALL.write(tmp_path / "a")
    assert_same(Pattern.read(tmp_path / "a"), SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from(sorted(NUMBERS)),
        st.sampled_from([0, 1, 17, 63, 255]),
        st.integers(1, 2**40),
        st.integers(0, 2**55),
    ),
    max_size=30,
)


@example([(0, 0, 0, "p2p", 0, 1, 0), (0, 0, 0, "p2p", 255, 1, 9)], [])
@given(ROWS, ROWS)
def test_any_traffic_survives_the_file(sent: list[Row], received: list[Row]) -> None:
    whole = pattern_of(7, sent, phases=4)
    whole = replace(whole, received=pattern_of(7, received, phases=4).sent)
    assert_same(parse(bytes_of(whole), "a", allow_missing=False), whole)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_numbers_survive_their_encoding(values: list[int]) -> None:
    array = np.array(values, dtype=np.uint64)
    assert varints.decode(varints.encode(array), len(values)).tolist() == values


@given(st.lists(st.integers(-(2**62), 2**62), max_size=50))
def test_signed_numbers_survive_theirs(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert varints.unzigzag(varints.zigzag(array)).tolist() == values


def test_sums_leave_out_what_carried_one_sided_operations() -> None:
    pattern = pattern_of(2, [(0, 0, 1, "put", 4, 1, 8), (0, 0, 1, "rma-protocol", 7, 2, 100)])
    assert pattern.matrix().tolist() == [[0, 8], [0, 0]]
    assert pattern.matrix(kinds=["rma-protocol"])[0, 1] == 100
    assert pattern.matrix("messages", groups=["one-sided"])[0, 1] == 1


def test_pairs_and_matrix_agree() -> None:
    src, dst, messages, total = SMALL.pairs()
    assert list(zip(src.tolist(), dst.tolist(), messages.tolist(), total.tolist(), strict=True)) == [
        (0, 1, 3, 1044),
        (2, 3, 5, 0),
        (3, 0, 1, 8),
    ]
    assert SMALL.matrix()[0, 1] == 1044
    assert SMALL.matrix(phase=1).sum() == 8
    with pytest.raises(PatternError, match="no phase 2: there are 2"):
        SMALL.matrix(phase=2)
    with pytest.raises(PatternError, match="no kind 'smoke'"):
        SMALL.matrix(kinds=["smoke"])


def test_phases_begin_where_the_pattern_changes() -> None:
    right = [(p, 0, 1, "p2p", 4, 1, 100 + p) for p in range(4)]
    silent_then_left = [(p, 1, 0, "p2p", 4, 1, 100) for p in range(5, 8)]
    joined = by_change(pattern_of(2, [*right, *silent_then_left], phases=8))
    assert joined.phase_edges.tolist() == [0.0, 5.0, 8.0]
    assert joined.matrix(phase=0).tolist() == [[0, 406], [0, 0]]
    assert joined.matrix(phase=1).tolist() == [[0, 0], [300, 0]]


# -- bad input -----------------------------------------------------------------------------------------


def refused(data: bytes, **options: bool) -> str:
    with pytest.raises(PatternError) as caught:
        parse(data, "a.pattern", allow_missing=options.get("allow_missing", False))
    message = str(caught.value)
    assert message.startswith("a.pattern ") and "\n" not in message
    return message


def test_a_file_cut_anywhere_is_refused() -> None:
    data = bytes_of(SMALL)
    for length in range(len(data)):
        message = refused(data[:length])
        assert "truncated" in message or "empty" in message


def test_a_bit_changed_anywhere_is_noticed() -> None:
    data = bytes_of(SMALL)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        if 10 <= at < 12 or (data[:at].rfind(b"END ") == len(data) - 16 and at >= len(data) - 16):
            continue  # The minor version; the end mark's own fields are looked at below.
        refused(bytes(changed))


def test_other_versions_are_named() -> None:
    head = bytearray(bytes_of(SMALL))
    head[8:10] = (2).to_bytes(2, "little")
    assert "version 2" in refused(bytes(head)) and "reads version 1" in refused(bytes(head))


def test_a_section_of_a_later_minor_version_is_skipped() -> None:
    data = bytes_of(SMALL)
    extra = b"new content"
    section = b"NEW " + struct.pack("<IQ", zlib.crc32(b"NEW " + extra), len(extra)) + extra
    at = HEADER.size
    assert_same(parse(data[:at] + section + data[at:], "a", allow_missing=False), SMALL)


def test_missing_ranks_are_named_unless_they_may_be_missing() -> None:
    file = to_file(SMALL)
    some = format_file(replace(file, sections={r: s for r, s in file.sections.items() if r in (0, 3)}))
    assert "lacks 2 of 4 ranks (1, 2)" in refused(some)
    partial = parse(some, "a.pattern", allow_missing=True)
    assert partial.missing == (1, 2) and partial.nodes == ("n0", "", "", "n1")
    assert partial.matrix()[0, 1] == 1044


def test_numbers_that_cannot_be_true_take_no_memory() -> None:
    head = HEADER.pack(b"\x89WSP\r\n\x1a\n", 1, 0, 0xFFFFFFFF, 0, 0, 0, 0)[:-4]
    assert "4294967295 ranks" in refused(head + struct.pack("<I", zlib.crc32(head)), allow_missing=True)
    far = pattern_of(2, [(3, 0, 1, "p2p", 4, 1, 9)], phases=4)
    file = to_file(far)
    section = bytearray(file.sections[0])
    content = section.replace(varints.encode(np.array([3], dtype=np.uint64)), b"\xff\xff\xff\x7f", 1)
    assert "damaged" in refused(format_file(replace(file, sections={**file.sections, 0: bytes(content)})))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PatternError, match="cannot be read: No such file"):
        Pattern.read(tmp_path / "nowhere")
    with pytest.raises(PatternError, match="cannot be read: Is a directory"):
        Pattern.read(tmp_path)
    (tmp_path / "text").write_text("hello, this is no pattern at all", encoding="utf-8")
    with pytest.raises(PatternError, match="is no pattern file"):
        Pattern.read(tmp_path / "text")
    with pytest.raises(PatternError, match="cannot be written"):
        SMALL.write(tmp_path / "no" / "such" / "folder")


# -- the original's -------------------------------------------------------------------------------------


def original(path: Path, ranks: dict[int, dict[str, Any]], count: int = 3) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for rank, more in ranks.items():
            zeros = [0] * count
            content = {"rank": rank, "n_procs": count, "processor_name": f"milk{rank}"}
            content |= dict.fromkeys(("tx_bytes", "rx_bytes", "tx_messages", "rx_messages"), zeros)
            content |= {"tx_message_sizes": [{"message_size": 5, "frequency": 2}], **more}
            data = json.dumps(content).encode()
            member = tarfile.TarInfo(f"oxton-result{rank}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_the_original_profilers_archive_is_read(tmp_path: Path) -> None:
    path = original(
        tmp_path / "a.tar.gz",
        {
            0: {"tx_bytes": [0, 10, 5], "tx_messages": [0, 2, 1]},
            1: {"rx_bytes": [10, 0, 0], "rx_messages": [2, 0, 0]},
            2: {},
        },
    )
    pattern = Pattern.read(path)
    assert pattern.matrix().tolist() == [[0, 10, 5], [0, 0, 0], [0, 0, 0]]
    assert pattern.matrix("messages")[0].tolist() == [0, 2, 1]
    assert pattern.received.bytes.tolist() == [10] and pattern.received.src.tolist() == [0]
    assert pattern.nodes == ("milk0", "milk1", "milk2") and pattern.phases == 1


def test_what_is_wrong_with_an_archive_is_said(tmp_path: Path) -> None:
    def says(ranks: dict[int, dict[str, Any]], words: str) -> None:
        with pytest.raises(PatternError, match=words):
            Pattern.read(original(tmp_path / "a.tar.gz", ranks))

    says({0: {}, 2: {}}, r"lacks 1 of 3 ranks \(1\)")
    says({}, "holds no rank's JSON file")
    says({0: {"tx_bytes": [1, 2]}}, "tx_bytes has 2 entries for 3 ranks")
    says({0: {"tx_bytes": [1, -2, 3]}}, "is no rank's file")
    says({0: {"rank": 7}}, "is of rank 7, and there are 3 ranks")
    says({0: {}, 1: {"rank": 0}}, "rank 0 is there twice")
    whole = original(tmp_path / "b.tar.gz", {0: {}, 1: {}, 2: {}}).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PatternError):
        Pattern.read(tmp_path / "cut.tar.gz")
    (tmp_path / "gz").write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(PatternError, match=r"no readable tar\.gz"):
        Pattern.read(tmp_path / "gz")


def test_sections_are_kept_as_they_are_when_a_file_is_taken_apart() -> None:
    data = bytes_of(SMALL)
    assert format_file(parse_file(data, "a")) == data
