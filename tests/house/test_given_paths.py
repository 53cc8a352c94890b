"""Paths that are given: one exit status where a source is missing, and an empty path is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Waystage

READERS = [
    ("copy", "PATH", "new"),
    ("verify", "PATH", "tree"),
    ("verify", "tree", "PATH"),
    ("compare", "PATH", "tree"),
    ("compare", "tree", "PATH"),
    ("catalog", "build", "PATH", "new"),
    ("catalog", "query", "PATH"),
    ("catalog", "refresh", "PATH"),
    ("catalog", "check", "PATH"),
    ("catalog", "checksum", "PATH"),
    ("catalog", "layout", "PATH"),
    ("catalog", "export", "PATH"),
    ("catalog", "share", "PATH", "new"),
    ("load", "PATH"),
    ("profile-targets", "PATH", "-o", "new"),
    ("dedup", "PATH"),
    ("dedup", "--merge", "PATH"),
    ("augment", "PATH", "new"),
    ("pattern", "show", "PATH"),
]


def words(command: tuple[str, ...]) -> str:
    return " ".join(command)


@pytest.mark.parametrize("command", READERS, ids=words)
def test_a_missing_source_has_one_status(
    tmp_path: Path, waystage: Waystage, command: tuple[str, ...]
) -> None:
    (tmp_path / "tree").mkdir()
    ran = waystage(*(word.replace("PATH", "absent") for word in command))
    assert ran.code == 3, ran
    assert "internal error" not in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["tree"], "nothing was made"


@pytest.mark.parametrize("command", [*READERS, ("copy", "tree", "PATH"), ("catalog", "export", "tree", "-o", "PATH")], ids=words)  # fmt: skip
def test_an_empty_path_is_not_the_current_directory(
    tmp_path: Path, waystage: Waystage, command: tuple[str, ...]
) -> None:
    (tmp_path / "tree").mkdir()
    ran = waystage(*(word.replace("PATH", "") for word in command))
    assert (ran.code, "empty" in ran.err) == (2, True), ran
    assert [path.name for path in tmp_path.iterdir()] == ["tree"], "nothing was made"
