"""Layouts as text, and what the contention model suggests: no file system is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies

from harness import Ran
from waystage.native_options.restripes import StripePart
from waystage.restripe import (
    LayoutTextError,
    StorageModel,
    layout_text,
    load_classes,
    parse_layout,
    suggest,
)

Run = Callable[..., Ran]

MODEL = StorageModel(
    targets=24,
    read_bytes_per_s=118e6,
    latency_s=0.001,
    slowdown=[(1, 1), (8, 3.19), (64, 21), (128, 85)],
    origin="a test",
)

UNIT = 64 << 10
PARTS = strategies.builds(
    StripePart,
    stripes=strategies.none() | strategies.integers(1, 65503),
    stripe_size=strategies.integers(1, 1000).map(lambda units: units * UNIT),
    pool=strategies.none() | strategies.from_regex(r"[a-z0-9_]{1,15}", fullmatch=True),
)


@given(PARTS, PARTS, strategies.integers(1, 1000))
def test_a_layout_is_read_as_it_is_written(first: StripePart, last: StripePart, stripes: int) -> None:
    first = StripePart(
        end=first.stripe_size * stripes, stripes=first.stripes, stripe_size=first.stripe_size, pool=first.pool
    )
    assert parse_layout(layout_text([first, last])) == (first, last)
    assert parse_layout(layout_text([last])) == (last,)


@given(strategies.text())
def test_any_text_is_a_layout_or_refused_in_one_sentence(text: str) -> None:
    try:
        parts = parse_layout(text)
    except LayoutTextError as error:
        assert str(error)
    else:
        assert parts[-1].end is None


@given(strategies.binary(max_size=200))
def test_any_file_is_size_classes_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("classes") / "layouts.yaml"
    path.write_bytes(b"format: waystage-layouts\nversion: 1\nclasses: " + data)
    try:
        assert load_classes(path)
    except LayoutTextError as error:
        assert str(path) in str(error)


def stripes(sizes: list[int]) -> list[int | None]:
    return [one.size_class.parts[0].stripes for one in suggest(np.array(sizes, np.int64), MODEL)]


def test_many_small_files_keep_one_stripe() -> None:
    assert stripes([100_000] * 5000) == [1]


def test_a_few_large_files_are_spread_and_equal_full_rounds_are_not() -> None:
    # Five files on 24 targets leave 19 idle; 240 files give each target ten.
    few = stripes([1 << 30] * 5)[0]
    assert few is None or few >= 4
    assert stripes([200 << 20] * 240) == [1]


def test_each_class_has_its_times_and_reason_and_the_last_takes_what_is_larger() -> None:
    found = suggest(np.array([1000] * 500 + [2 << 30] * 3, np.int64), MODEL)
    assert [one.size_class.most_bytes for one in found] == [1 << 20, None]
    assert [one.files for one in found] == [500, 3]
    large = found[1]
    chosen = large.size_class.parts[0].stripes or MODEL.targets
    assert large.seconds[chosen] <= min(large.seconds.values()) * 1.03
    assert large.seconds[1] > 2 * large.seconds[chosen] and "times as long" in large.reason


def test_a_suggestion_is_printed_with_reasons_and_is_input_for_layout(tmp_path: Path, waystage: Run) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"small{number}").write_bytes(b"s" * 1000)
    with (tree / "large").open("wb") as sparse:
        sparse.truncate(3 << 30)
    file = tmp_path / "layouts.yaml"
    said = waystage("restripe", tree, "--suggest", "-o", file).expect()
    assert "stripes=1,stripe_size=1Mi" in said.out and "one process reads" in said.out
    classes = load_classes(file)
    assert [one.most_bytes for one in classes] == [1 << 20, None]
    assert classes[0].parts[0].stripes == 1 and classes[1].parts[0].stripes != 1
    waystage("catalog", "build", tree, tmp_path / "catalog").expect()
    value = waystage("restripe", tree, "--suggest", "--catalog", tmp_path / "catalog", "--json").expect().json
    assert [one["files"] for one in value["classes"]] == [20, 1]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "nothing to choose a layout for" in waystage("restripe", empty, "--suggest").expect(3).err
