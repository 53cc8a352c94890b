"""The benchmark against ImageFolder: skipped with a sentence, and every file is accounted for."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import bench_module
from waystage.bench import BenchError, BenchOptions


def batch(bench: Any, numbers: list[int], size: int | None = None) -> tuple[Any, Any, tuple[int, int]]:
    """What the consumer keeps of a batch: first bytes, classes, shape."""
    heads = np.array(numbers, dtype="<u8").view(np.uint8).reshape(len(numbers), 8)
    classes = np.array(numbers) % bench.CLASSES
    shape = (len(numbers), bench.BYTES if size is None else size)
    return SimpleNamespace(numpy=lambda: heads), SimpleNamespace(numpy=lambda: classes), shape


def test_without_pytorch_it_is_skipped_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = bench_module("python_loader").run(BenchOptions())
    assert answer["figures"] == {}
    assert "torch and torchvision not installed: run scripts/torch" in answer["details"]["skipped"]


def test_each_file_must_come_once_whole_and_with_its_class() -> None:
    bench = bench_module("python_loader")
    bench._check_numbers(4, [batch(bench, [3, 0]), batch(bench, [1, 2])])
    with pytest.raises(BenchError, match="2 of 4 files did not come exactly once"):
        bench._check_numbers(4, [batch(bench, [3, 0]), batch(bench, [0, 2])])
    with pytest.raises(BenchError, match="not whole"):
        bench._check_numbers(2, [batch(bench, [0, 1], size=100)])
    heads, _, shape = batch(bench, [0, 1])
    with pytest.raises(BenchError, match="another class"):
        bench._check_numbers(2, [(heads, SimpleNamespace(numpy=lambda: np.array([0, 0])), shape)])


def test_only_reads_from_the_disk_must_leave_the_machine_some_idle_time() -> None:
    short = bench_module("python_loader")._short_of_cpu
    assert short({"cold": True, "idle_pct": 1.0}) is not None
    assert short({"cold": True, "idle_pct": 50.0}) is None
    assert short({"cold": False, "idle_pct": 1.0}) is None and short({"idle_pct": 1.0}) is None
