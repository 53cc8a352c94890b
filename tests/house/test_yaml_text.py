"""Every YAML file is read in one place, within bounds, however few bytes it takes to ask for more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waystage.backplane.config import BackplaneError, load_config
from waystage.bounded import read_bounded
from waystage.yaml_text import MAX_BYTES, MAX_DEPTH, MAX_VALUES, YamlError, load, load_plain

PACKAGE = Path(__file__).parents[2] / "python" / "waystage"

ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)

HOSTILE = {
    "aliases of lists": ALIAS_BOMB,
    "aliases of mappings": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 12)),
    "merged mappings": "a0: &a0 {"
    + ", ".join(f"k{i}: 1" for i in range(500))
    + "}\n"
    + "".join(f"b{i}: {{<<: *a0}}\n" for i in range(5000)),
    "a long text behind aliases": f'a: &a "{"x" * 100_000}"\nb: [{", ".join(["*a"] * 1000)}]\n',
    "an alias within itself": "a: &a [*a]\n",
    "lists in lists": "[" * 100_000,
    "lists in lists, a line each": "- " * 100_000,
    "mappings in mappings": "".join(" " * i + "a:\n" for i in range(500)),
    "many values": "a: [" + "b," * (MAX_VALUES + 1) + "]\n",
    "many documents": "---\n" * (MAX_VALUES + 1),
    "many bytes": "#" * (MAX_BYTES + 1),
    "a number of many digits": "a: " + "1" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [load, load_plain])
def test_what_asks_for_more_than_any_file_needs_is_refused_with_its_line(name: str, read: object) -> None:
    with pytest.raises(YamlError) as caught:
        read(HOSTILE[name].encode())  # type: ignore[operator]
    assert caught.value.line >= 1 and "\n" not in str(caught.value)


def test_what_is_within_the_bounds_is_read() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert load_plain(deepest.encode()) is not None
    twice = load_plain(b"a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}\n")
    assert twice == {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}
    document = load(b"a: 1\nb:\n  - 2\n")
    assert document.lc.key("b") == (1, 0)


@pytest.mark.parametrize("name", ["aliases of lists", "lists in lists"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "FILE", "--on", "sim"],
        ["controller", "--config", "FILE"],
    ],
)
def test_a_command_refuses_a_bomb_in_one_sentence_with_file_and_line(
    tmp_path: Path, name: str, command: list[str]
) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(HOSTILE[name])
    ran = subprocess.run(
        [sys.executable, "-m", "waystage", *(str(file) if word == "FILE" else word for word in command)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode in (1, 2, 3)
    assert re.search(r"bomb\.yaml:\d+: .*(aliases written out|nested too deeply)", ran.stderr)
    assert len(ran.stderr.strip().splitlines()) == 1 and "internal error" not in ran.stderr


def test_a_configuration_of_the_backplane_is_read_within_the_same_bounds(tmp_path: Path) -> None:
    file = tmp_path / "backplane.yaml"
    for text in (ALIAS_BOMB, HOSTILE["lists in lists"]):
        file.write_text(text)
        with pytest.raises(BackplaneError, match=r"backplane\.yaml:\d+: "):
            load_config(file)


def test_a_device_a_fifo_and_a_folder_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/zero"), tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError):
            read_bounded(path, 1000)
    (tmp_path / "large").write_bytes(b"x" * 1001)
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_bounded(tmp_path / "large", 1000)
    (tmp_path / "large").write_bytes(b"x" * 1000)
    assert len(read_bounded(tmp_path / "large", 1000)) == 1000


def test_no_other_module_parses_yaml() -> None:
    parses = re.compile(r"\bYAML\(|safe_load|yaml\.load|import yaml\b")
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if parses.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["yaml_text.py"]
