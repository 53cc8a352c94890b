"""Shape files: what they give, and what is wrong with them, by line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import command, ran
from pfs_support import FAST
from waystage._native import EmulatedFileSystem, PfsError
from waystage.experiment.problems import ExperimentError
from waystage.worlds.lab.pfs import load, shipped, why_invalid
from waystage.worlds.lab.pfs.shape import native, sizes

GOOD = FAST + "tree: {files: 1000, sizes: {median: 1 MB, sigma: 1.0, largest: 4 MB}}\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "shape.yaml"
    file.write_text(text)
    return file


def test_the_shipped_shape_is_nurion_s() -> None:
    assert "nurion" in shipped()
    shape = load("nurion")
    assert (shape.targets.count, shape.metadata.servers) == (24, 2)
    assert shape.targets.slowdown[0] == (1, 1)


def test_every_number_of_the_shipped_shape_has_its_source() -> None:
    """Each line with a number says that it is of the paper, inferred or assumed; a key above may say it for lines below."""
    import waystage

    text = (Path(waystage.__file__).parent / "data" / "pfs" / "nurion.yaml").read_text()
    body = text[text.index("\nname:") :]
    for line in body.splitlines():
        value, _, why = line.partition("#")
        bare = value.strip().startswith(("glimpse", "close", "attributes_s", "seed", "size", "description"))
        if any(character.isdigit() for character in value) and not bare:
            assert why.strip(), line


def test_sizes_follow_from_the_seed_and_stay_in_bounds(tmp_path: Path) -> None:
    shape = load(write(tmp_path, GOOD))
    drawn = sizes(shape)
    assert len(drawn) == 1000
    assert drawn.max() == 4_000_000 and drawn.min() >= 1
    assert 0.8e6 < np.median(drawn) < 1.25e6
    assert np.array_equal(drawn, sizes(shape))
    assert not np.array_equal(drawn, sizes(msgspec.structs.replace(shape, seed=2)))


def test_sizes_come_from_a_file_in_proportion(tmp_path: Path) -> None:
    (tmp_path / "sizes.txt").write_text("# bytes count\n0 1\n\n2700 98  # small\n1000000 1\n")
    drawn = sizes(load(write(tmp_path, FAST + "tree: {files: 5000, sizes_file: sizes.txt}\n")))
    counts = {int(size): int((drawn == size).sum()) for size in set(drawn.tolist())}
    assert set(counts) == {0, 2700, 1_000_000}
    assert counts[2700] > 4700


@pytest.mark.parametrize(
    "line", ["many", "-1 2", "1 2 3", "1 0", "1 nan", "1 inf", "9999999999999999999 1", ""]
)
def test_a_file_of_sizes_that_is_none_is_refused_by_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "sizes.txt").write_text(f"# sizes\n{line}\n")
    shape = load(write(tmp_path, FAST + "tree: {files: 5, sizes_file: sizes.txt}\n"))
    with pytest.raises(ExperimentError, match=r"sizes\.txt(:2)?: "):
        sizes(shape)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("count: 4", "count: 0", r"targets\.count: "),
        ("count: 4", "count: 5000", r"targets\.count: "),
        ("count: 4", "cuont: 4", r"targets\.cuont: unknown key: did you mean count\?"),
        ("read_per_s: 1 GB", "read_per_s: .nan", r"targets\.read_per_s: nan is no"),
        ("read_per_s: 1 GB", "read_per_s: -5", r"targets\.read_per_s: "),
        ("read_per_s: 1 GB", "read_per_s: 0", r"targets\.read_per_s: "),
        ("latency_ms: 1,", "latency_ms: -1,", r"targets\.latency_ms: "),
        ("latency_ms: 1,", "latency_ms: .inf,", r"targets\.latency_ms: inf is no"),
        ("[4, 4]", "[4, 0.5]", r"targets\.slowdown\.1: a slowdown of 0.5 is none"),
        ("[4, 4]", "[1, 4]", r"targets\.slowdown\.1: readers must rise"),
        ("servers: 2", "servers: 0", r"metadata\.servers: "),
        ("messages_per_s: 100000", "messages_per_s: -1", r"metadata\.messages_per_s: "),
        ("messages_per_s: 100000", "messages_per_s: .nan", r"metadata\.messages_per_s: nan is no"),
        (
            "tree:",
            "layout: {parts: [{to: 1 MiB}]}\ntree:",
            r"layout\.parts\.0\.to: the largest files end later",
        ),
        ("tree:", "layout: {parts: [{stripe_size: 1 MB}]}\ntree:", r"stripe_size: use a multiple of 64 KiB"),
        ("tree:", "layout: {parts: [{pool: fast}]}\ntree:", r"pool: there is no pool fast"),
        ("tree:", "layout: {pools: {fast: [4]}}\ntree:", r"there is no target 4: they are 0 to 3"),
        (
            "tree:",
            "layout: {parts: [{to: 3 MiB, stripe_size: 2 MiB}, {}]}\ntree:",
            r"multiple of its stripe size",
        ),
        ("files: 1000,", "files: 1000, size: 5,", r"tree: give one of"),
        ("tree:", "dilation: 0\ntree:", r"dilation: "),
        ("tree:", "dilation: .nan\ntree:", r"dilation: nan is no"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(tmp_path: Path, was: str, now: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(ExperimentError, match=r"^shape\.yaml:\d+: .*" + said.lstrip("^")):
        load(write(tmp_path, GOOD.replace(was, now, 1)))


def test_a_shape_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"there is no such shape file; shipped shapes: .*nurion"):
        load(tmp_path / "nowhere.yaml")


@given(text=st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_any_text_is_refused_or_understood(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(FAST + text, encoding="utf-8", errors="replace")
    try:
        load(file)
    except ExperimentError as error:
        assert str(error).startswith("any.yaml:")


def test_the_native_part_refuses_bad_shapes_too(tmp_path: Path) -> None:
    shape = native(load(write(tmp_path, GOOD)), None)
    for wrong in (
        {"slots": 0},
        {"targets": 0},
        {"read_rate_bps": float("nan")},
        {"components": []},
        {"slowdown": [(1.0, 0.5)]},
        {"pools": [("p", [9])]},
    ):
        with pytest.raises(PfsError):
            EmulatedFileSystem(tmp_path, "x", shape | wrong, np.array([1], dtype=np.uint64))
    with pytest.raises(PfsError, match="give a folder"):
        EmulatedFileSystem(tmp_path, "x", shape)


def test_times_of_a_late_emulation_are_invalid() -> None:
    counted = {"waits_s": 10.0, "late_s": 0.5, "dilation": 2.0}
    assert why_invalid(counted) is None
    why = why_invalid(counted | {"late_s": 0.6})
    assert why is not None and "6.0 % late" in why and "--dilation above 2" in why
    assert why_invalid({"waits_s": 0.0, "late_s": 0.0, "dilation": 1.0}) is None


@pytest.mark.parametrize("size", ["-5 MB", "-1", "0", "9 EB", "1e400", "nan"])
def test_a_size_that_no_file_has_is_refused_on_the_command_line_too(tmp_path: Path, size: str) -> None:
    done = ran(command("lab", "pfs", "mount", tmp_path, "--files", "3", f"--size={size}"))
    assert done.code == 2 and "--size" in done.err and done.err.count("\n") == 1, done.err
