"""`waystage catalog record` as a user has it: the program's own output and status; what happens when either side dies."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Waystage, command, wait_until
from recorder_support import differences
from waystage.catalog import Catalog, refresh
from waystage.recorder import build as build_library

RINGS, RING_BYTES = 4, 1 << 16
HEADER, RING_WORDS = 4288, 192


def test_output_and_status_are_the_programs(waystage: Waystage, tree: Path, catalogued: Path) -> None:
    script = f"echo out; echo err >&2; echo x > {tree}/n; exit 7"
    ran = waystage("catalog", "record", "-c", str(catalogued), "--", "sh", "-c", script).expect(7)
    assert ran.out == "out\n"
    assert ran.err.startswith("err\n") and "entries" in ran.err
    assert not differences(catalogued)


def test_a_killed_program_has_the_status_of_its_signal(
    waystage: Waystage, tree: Path, catalogued: Path
) -> None:
    script = f"echo x > {tree}/n; kill -9 $$"
    ran = waystage("catalog", "record", "--quiet", "-c", str(catalogued), "--", "sh", "-c", script)
    assert ran.code == 128 + signal.SIGKILL
    assert ran.err == ""
    assert not differences(catalogued)


def test_json_is_the_last_line_of_stderr(waystage: Waystage, tree: Path, catalogued: Path) -> None:
    words = ("--", "env", "-C", str(tree), "touch", "n")
    ran = waystage("catalog", "record", "--json", "-c", str(catalogued), *words)
    assert ran.code == 0 and ran.out == ""
    said = json.loads(ran.err.splitlines()[-1])
    assert said["status"] == 0 and said["gaps"] == {} and said["entries"] == 12
    assert said["counts"]["lost"] == 0


def test_output_that_goes_into_the_tree_is_in_the_catalog(tree: Path, catalogued: Path) -> None:
    recording = command("catalog", "record", "-q", "-c", catalogued, "--")
    with open(tree / "output", "w", encoding="utf-8") as output:
        subprocess.run([*recording, "echo", "hello"], stdout=output, check=True, timeout=150)
    assert (tree / "output").read_text(encoding="utf-8") == "hello\n"
    assert not differences(catalogued)


def test_questions_say_what_may_be_missing(waystage: Waystage, tree: Path, target: Path) -> None:
    waystage("catalog", "record", "-c", str(target), "--tree", str(tree), "--", "touch", str(tree / "n"))
    asked = waystage("catalog", "query", str(target), "--count", "--json")
    assert asked.json["entries"] == 1
    assert "before the recording" in asked.err and "refresh" in asked.err
    assert waystage("catalog", "refresh", str(target)).code == 0
    assert waystage("catalog", "query", str(target), "--count").err == ""


def test_a_program_outlives_the_one_that_records_it_and_the_catalog_says_so(
    waystage: Waystage, tree: Path, catalogued: Path, compiled: Callable[[str], str]
) -> None:
    going, end = tree.parent / "going", tree.parent / "end"
    script = (
        f"touch {going}; while [ ! -e {end} ]; do sleep 0.02; done; {compiled('storm')} 6000; echo $? > {end}"
    )
    words = ("catalog", "record", "-c", catalogued, "--", "env", "-C", tree, "sh", "-c", script)
    recording = subprocess.Popen(command(*words))
    try:
        wait_until(going.exists)
        assert Catalog(catalogued).manifest.gaps == {"recording": 1}
    finally:
        recording.kill()
        recording.wait()
        end.touch()
    wait_until(lambda: end.read_text(encoding="utf-8") == "0\n")
    assert "killed" in waystage("catalog", "query", str(catalogued), "--count").err
    refresh(catalogued)
    assert Catalog(catalogued).manifest.gaps == {} and not differences(catalogued)


def test_without_a_reader_programs_end_and_every_loss_is_counted(
    tmp_path: Path, compiled: Callable[[str], str]
) -> None:
    """A segment of four small rings without a reader: each record that does not fit is counted."""
    count = 2000
    memory = tmp_path / "ring"
    header = struct.pack("<QIIIIQ", 0x31474E5259415753, 1, 0, RINGS, 0, RING_BYTES)
    size = HEADER + RINGS * (RING_WORDS + RING_BYTES)
    memory.write_bytes(header + bytes(size - len(header)))
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {"LD_PRELOAD": str(build_library()), "WAYSTAGE_RING": str(memory)}
    done = subprocess.run(
        [compiled("writing"), str(count), "0", "1"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == b""
    with open(memory, "r+b") as file, mmap.mmap(file.fileno(), size) as words:
        lost = struct.unpack_from("<Q", words, 128)[0]
        written = sum(_records(words, ring) for ring in range(RINGS))
    assert lost > 0 and written > 0
    # Of each pair of files one is recorded when made, and both twice when removed; the program's start once.
    assert written + lost == 5 * count + 1


@pytest.mark.parametrize("content", [b"", b"x" * 4287, bytes(1 << 16), os.urandom(1 << 16)])
def test_a_segment_that_is_none_is_left_alone(tmp_path: Path, content: bytes) -> None:
    memory = tmp_path / "ring"
    memory.write_bytes(content)
    environment = {"LD_PRELOAD": str(build_library()), "WAYSTAGE_RING": str(memory)}
    subprocess.run(["touch", str(tmp_path / "n")], env=os.environ | environment, check=True, timeout=150)
    assert memory.read_bytes() == content


def test_calls_that_fail_fail_as_before(tmp_path: Path) -> None:
    script = """
import os
for call in (lambda: os.open("/no/such", os.O_CREAT | os.O_WRONLY), lambda: os.rename("a", "b"), lambda: os.close(99),
             lambda: os.unlink(""), lambda: os.mkdir("/"), lambda: os.dup2(98, 97), lambda: os.chdir("nowhere"),
             lambda: os.open("x" * 5000, os.O_WRONLY), lambda: os.link("a", "b"), lambda: os.truncate("a", 1)):
    try:
        print(call())
    except OSError as error:
        print(error.errno)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for address in (0, 1, 4095, 1 << 63, (1 << 64) - 1):
    for call in (lambda: libc.open(ctypes.c_void_p(address), os.O_WRONLY), lambda: libc.unlink(ctypes.c_void_p(address)),
                 lambda: libc.utimensat(-100, ctypes.c_void_p(address), None, 0), lambda: libc.closedir(None)):
        print(call(), ctypes.get_errno())
"""
    memory = tmp_path / "ring"
    header = struct.pack("<QIIIIQ", 0x31474E5259415753, 1, 1, RINGS, 0, RING_BYTES)
    memory.write_bytes(header + bytes(HEADER + RINGS * (RING_WORDS + RING_BYTES) - len(header)))
    environment = {"LD_PRELOAD": str(build_library()), "WAYSTAGE_RING": str(memory)}
    said = [
        subprocess.run(
            [sys.executable, "-S", "-E", "-c", script],
            cwd=tmp_path,
            env=os.environ | more,
            capture_output=True,
            text=True,
            check=True,
            timeout=150,
        )
        for more in ({}, environment)
    ]
    assert said[0].stdout == said[1].stdout
    assert said[1].stderr == ""


def _records(words: mmap.mmap, ring: int) -> int:
    """Unread records of a ring, fillers left out."""
    head = struct.unpack_from("<Q", words, HEADER + RING_WORDS * ring + 64)[0]
    start, at, found = HEADER + RING_WORDS * RINGS + RING_BYTES * ring, 0, 0
    while at < head:
        size, _, kind = struct.unpack_from("<IHB", words, start + at)
        found += kind != 1
        at += size
    return found
