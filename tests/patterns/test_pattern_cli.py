"""`waystage pattern`: show, convert and merge, as a user calls them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import Waystage
from waystage.patterns import KINDS, Pattern, Traffic
from waystage.patterns.encode import to_file, write_file

NUMBERS = {kind.name: kind.number for kind in KINDS}


@pytest.fixture
def pattern(tmp_path: Path) -> Pattern:
    """Two phases: rank 0 broadcasts to 1 and 2, then 2 sends to 0, as no other rank does."""
    sent = Traffic.from_rows(
        [0, 0, 1],
        [0, 0, 2],
        [1, 2, 0],
        [NUMBERS["bcast"]] * 2 + [NUMBERS["p2p"]],
        [4, 4, 21],
        [1, 1, 2],
        [8, 8, 2_000_000],
    )
    whole = Pattern(
        ranks=3,
        sent=sent,
        received=sent,
        phase_edges=np.array([0.0, 1.0, 1.5]),
        nodes=("a", "a", "b"),
        run={"program": "cg", "mpi": "Open MPI v4.1.4"},
    )
    whole.write(tmp_path / "run.pattern")
    return whole


def test_show_says_totals_kinds_phases_pairs_and_draws(
    pattern: Pattern, waystage: Waystage, tmp_path: Path
) -> None:
    ran = waystage("pattern", "show", "run.pattern", "--png", "map.png")
    assert ran.code == 0 and ran.err == ""
    assert "3 ranks on 2 node(s): 4 messages, 2,000,016 bytes between 3 pairs" in ran.out
    assert "cg with Open MPI v4.1.4, 1.500 s" in ran.out
    assert "the darkest is 2,000,000 bytes" in ran.out
    rows = [line for line in ran.out.splitlines() if line.startswith("│")]
    assert len(rows) == 3 and rows[2].startswith("│██") and rows[1] == "│      │"
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    first = (tmp_path / "map.png").read_bytes()
    assert waystage("pattern", "show", "run.pattern", "--png", "map.png").code == 0
    assert (tmp_path / "map.png").read_bytes() == first


def test_show_for_programs(pattern: Pattern, waystage: Waystage) -> None:
    answer = waystage("pattern", "show", "run.pattern", "--json").json
    assert answer["bytes"] == 2_000_016 and answer["messages"] == 4
    assert answer["top_pairs"][0] == {
        "src": 2, "dst": 0, "src_node": "b", "dst_node": "a", "messages": 2, "bytes": 2_000_000,
    }  # fmt: skip
    assert [(row["kind"], row["bytes"], row["received_bytes"]) for row in answer["kinds"]] == [
        ("p2p", 2_000_000, 2_000_000),
        ("bcast", 16, 16),
    ]
    assert [row["bytes"] for row in answer["phases"]] == [16, 2_000_000]
    assert answer["sizes"][0] == {"least": 8, "most": 15, "messages": 2}
    one = waystage("pattern", "show", "run.pattern", "--json", "--phase", "0", "--top", "1").json
    assert one["bytes"] == 16 and len(one["top_pairs"]) == 1


def test_convert_to_every_format_and_back(pattern: Pattern, waystage: Waystage, tmp_path: Path) -> None:
    for name in ("x.csv", "x.json", "x.npz", "x.tar.gz", "x.pattern"):
        assert waystage("pattern", "convert", "run.pattern", name).code == 0, name
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        assert [tuple(row.values()) for row in csv.DictReader(file)][2] == (
            "1",
            "2",
            "0",
            "p2p",
            "2",
            "2000000",
        )
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["pairs"]["bytes"] == [
        8,
        8,
        2_000_000,
    ]
    assert np.load(tmp_path / "x.npz")["dst"].tolist() == [1, 2, 0]
    assert np.array_equal(Pattern.read(tmp_path / "x.tar.gz").matrix(), pattern.matrix())
    assert (tmp_path / "x.pattern").read_bytes() == (tmp_path / "run.pattern").read_bytes()
    back = waystage("pattern", "convert", "x.tar.gz", "y.pattern")
    assert back.code == 0 and np.array_equal(Pattern.read(tmp_path / "y.pattern").matrix(), pattern.matrix())
    first = (tmp_path / "x.tar.gz").read_bytes()
    assert waystage("pattern", "convert", "run.pattern", "x.tar.gz").code == 0
    assert (tmp_path / "x.tar.gz").read_bytes() == first


def test_convert_joins_phases(pattern: Pattern, waystage: Waystage, tmp_path: Path) -> None:
    assert waystage("pattern", "convert", "run.pattern", "one.pattern", "--phases", "one").code == 0
    one = Pattern.read(tmp_path / "one.pattern")
    assert one.phases == 1 and np.array_equal(one.matrix(), pattern.matrix())
    answer = waystage("pattern", "convert", "run.pattern", "c.pattern", "--phases", "change", "--json").json
    assert answer["phases"] == 2


def test_convert_refuses_an_ending_it_does_not_know(
    pattern: Pattern, waystage: Waystage, tmp_path: Path
) -> None:
    ran = waystage("pattern", "convert", "run.pattern", "x.doc")
    assert ran.code == 3 and ".csv" in ran.err and not (tmp_path / "x.doc").exists()


def test_merge_joins_parts_of_one_run_only(pattern: Pattern, waystage: Waystage, tmp_path: Path) -> None:
    file = to_file(pattern)
    for rank, section in file.sections.items():
        write_file(replace(file, sections={rank: section}), tmp_path / f"part-{rank}")
    merged = waystage("pattern", "merge", "part-0", "part-1", "part-2", "-o", "merged", "--json")
    assert merged.json["missing"] == []
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "run.pattern").read_bytes()

    some = waystage("pattern", "merge", "part-0", "part-2", "-o", "some")
    assert some.code == 0 and "1 missing" in some.out
    shown = waystage("pattern", "show", "some")
    assert shown.code == 0 and "1 rank left nothing: 1" in shown.out
    refused = waystage("pattern", "convert", "some", "some.csv")
    assert refused.code == 3 and "lacks 1 of 3 ranks (1)" in refused.err

    twice = waystage("pattern", "merge", "part-0", "part-0", "-o", "x")
    assert twice.code == 3 and "rank 0 is in part-0 and in part-0" in twice.err
    write_file(replace(file, ranks=4, sections={3: file.sections[0]}), tmp_path / "other")
    other = waystage("pattern", "merge", "part-0", "other", "-o", "x")
    assert other.code == 3 and other.err.count("\n") == 1


def test_bad_files_end_in_one_sentence(pattern: Pattern, waystage: Waystage, tmp_path: Path) -> None:
    data = (tmp_path / "run.pattern").read_bytes()
    for name, content in (("empty", b""), ("cut", data[:-5]), ("text", b"hello")):
        (tmp_path / name).write_bytes(content)
        for words in (("show", name), ("convert", name, "x.csv"), ("merge", name, "-o", "x")):
            ran = waystage("pattern", *words)
            assert ran.code == 3 and ran.out == "" and ran.err.count("\n") == 1 and name in ran.err
