"""Slurm's file of burst buffers, read and extended by the Lua that slurmctld runs as it starts."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.slurm.check import KNOWN_BUFFERS, _buffers
from waystage.slurm.scripts import burst_buffer_lua
from waystage.slurm.settings import SlurmSettings

LUA = shutil.which("lua5.1") or shutil.which("lua")
pytestmark = pytest.mark.skipif(LUA is None, reason="Lua is not installed: scripts/packages tests")

DRIVER = """
for index = 1, #arg do
  local file = io.open(arg[index], "rb")
  local text = file:read("*a")
  file:close()
  local whole, added = buffers.add(text, { { id = 8, uid = 1001, gid = 1002, time = 1700000000 } })
  if whole then
    file = io.open(arg[index] .. ".out", "wb")
    file:write(whole)
    file:close()
    added = "added " .. table.concat(added, " ")
  end
  print(added)
end
"""

SLURM_21_08, SLURM_22_05, SLURM_23_02 = 37, 38, 39

Record = tuple[str, int]
"""A buffer's name and user."""


def text(value: str | None) -> bytes:
    return (
        struct.pack(">I", 0) if value is None else struct.pack(">I", len(value) + 1) + value.encode() + b"\0"
    )


def packed(records: Sequence[Record], version: int = SLURM_22_05, group: int = 0) -> bytes:
    """As slurmctld writes it: burst_buffer_lua.c, _save_bb_state."""
    body = b""
    for name, user in records:
        body += text("account") + struct.pack(">qI", 1_700_000_000, 0) + text(name)
        body += text("debug") + text(None) + text("normal") + struct.pack(">I", user)
        body += (struct.pack(">I", group) if version >= SLURM_23_02 else b"") + struct.pack(">Q", 0)
    return struct.pack(">BBI", version, 0, len(records)) + body


def unpacked(file: bytes) -> list[tuple[str, int, int]]:
    """Name, user and group of each record, which are all that there is: burst_buffer_lua.c, _recover_bb_state."""
    version, _, count = struct.unpack_from(">BBI", file)
    at, found = 6, []

    def word() -> str:
        nonlocal at
        (length,) = struct.unpack_from(">I", file, at)
        at += 4 + length
        return file[at - length : at].removesuffix(b"\0").decode("latin-1")

    for _ in range(count):
        word()
        at += 12
        name, *_ = (word() for _ in range(4))
        (user,) = struct.unpack_from(">I", file, at)
        at += 4
        group = 0
        if version >= SLURM_23_02:
            (group,) = struct.unpack_from(">I", file, at)
            at += 4
        at += 8
        found.append((name, user, group))
    assert at == len(file)
    return found


def add(folder: Path, *files: bytes) -> list[tuple[str, bytes | None]]:
    """What Lua says of each file, and the file with job 8; None where it is left as it is."""
    program = folder / "driver.lua"
    program.write_text((resources.files("waystage") / "data/slurm/buffers.lua").read_text() + DRIVER)
    paths = [folder / f"{index}" for index in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file)
        path.with_suffix(".out").unlink(missing_ok=True)
    done = subprocess.run([str(LUA), program, *paths], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    out = [path.with_suffix(".out") for path in paths]
    return [
        (said, each.read_bytes() if each.exists() else None)
        for said, each in zip(done.stdout.splitlines(), out, strict=True)
    ]


@pytest.mark.parametrize("version", [SLURM_21_08, SLURM_22_05, SLURM_23_02, SLURM_23_02 + 4])
def test_a_job_that_slurmctld_had_not_saved_is_added_behind_the_others(tmp_path: Path, version: int) -> None:
    ((said, whole),) = add(tmp_path, packed([("7", 1000), ("81", 1)], version, group=5))
    group = version >= SLURM_23_02
    assert said == "added 8" and whole is not None
    assert unpacked(whole) == [("7", 1000, 5 * group), ("81", 1, 5 * group), ("8", 1001, 1002 * group)]


def test_a_job_that_is_there_is_not_added_again(tmp_path: Path) -> None:
    before = packed([("8", 1001)])
    assert add(tmp_path, before, packed([])) == [
        ("added ", before),
        ("added 8", add(tmp_path, packed([]))[0][1]),
    ]


def test_a_version_that_is_not_known_is_left_as_it_is(tmp_path: Path) -> None:
    for version in (36, 44, 255):
        ((said, whole),) = add(tmp_path, packed([("7", 1)], version))
        assert whole is None and f"its version is {version}.0" in said


def test_check_names_the_versions_that_lua_does_not_know(tmp_path: Path) -> None:
    lua = (resources.files("waystage") / "data/slurm/buffers.lua").read_text()
    assert f"buffers.NEWEST, buffers.WITH_GROUP = {KNOWN_BUFFERS[0]}, {KNOWN_BUFFERS[-1]}, 39" in lua
    file = tmp_path / "burst_buffer_lua_state"
    assert list(_buffers(tmp_path)) == []
    file.write_bytes(packed([]))
    assert list(_buffers(tmp_path)) == []
    file.write_bytes(packed([], KNOWN_BUFFERS[-1] + 1))
    (found,) = _buffers(tmp_path)
    assert not found.ok and "has version 44.0" in found.text and "STAGE_OUT" in found.text


@given(
    st.lists(st.tuples(st.from_regex(r"[0-9]{1,9}", fullmatch=True), st.integers(0, 2**32 - 1)), max_size=5),
    st.sampled_from([SLURM_21_08, SLURM_22_05, SLURM_23_02]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_never_changed_and_a_whole_one_keeps_its_records(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], version: int, data: st.DataObject
) -> None:
    whole = packed(records, version)
    cut = data.draw(st.integers(0, len(whole) - 1))
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    noise = data.draw(st.binary(max_size=200))
    said = add(tmp_path_factory.mktemp("b"), whole, whole[:cut], whole + b"\0", changed, noise)
    names = [name for name, *_ in unpacked(said[0][1] or b"")]
    assert names == [name for name, _ in records] + ([] if "8" in dict(records) else ["8"])
    assert said[1][1] is None and said[2][1] is None
    for before, (_, after) in zip((changed, noise), said[3:], strict=True):
        if after is not None:
            assert after[6 : len(before)] == before[6:]
            unpacked(after)


HOOKS = """
slurm = { SUCCESS = 0, ERROR = -1, log_info = function(format, text) print(text) end }
"""


class Controller:
    """slurmctld as its plug-in sees it: a folder of states, hooks that are called, each start another process."""

    def __init__(self, folder: Path) -> None:
        self.hooks, self.state = folder / "a 'b", folder / "state save"
        self.hooks.mkdir()
        self.state.mkdir()
        self.script = self.state / "hash.8/job.8/script"
        self.script.parent.mkdir(parents=True)
        self.script.write_text("#!/bin/sh\n#BB_LUA stage_in source=/a destination=/b\n")
        made = SlurmSettings(command=("/bin/false",), client=("/bin/false",), state_dir=str(self.hooks))
        self.program = folder / "hooks.lua"
        self.program.write_text(HOOKS + burst_buffer_lua(made))
        self.file = self.state / "burst_buffer_lua_state"
        self.file.write_bytes(packed([("7", 1000)]))
        self.saved(ago_s=0)

    def saved(self, ago_s: float) -> None:
        """slurmctld saved its jobs that long ago."""
        jobs = self.state / "job_state"
        jobs.touch()
        os.utime(jobs, (time.time() - ago_s,) * 2)

    def call(self, *lines: str) -> str:
        """Call hooks in one process; what they log."""
        words = [str(LUA), "-e", f"dofile({str(self.program)!r})\n" + "\n".join(lines)]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in unpacked(self.file.read_bytes())]


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


SETUP = "assert(slurm_bb_job_process({0!r}) == 0); assert(slurm_bb_setup('8', '1001', '1002', nil, nil, {0!r}) == 0)"
START = "assert(slurm_bb_pools() == 0)"
TEARDOWN = "assert(slurm_bb_job_teardown('8', '', 'false') == 0)"


def test_slurmctld_finds_a_buffer_that_it_had_not_saved(controller: Controller) -> None:
    controller.call(START, SETUP.format(str(controller.script)))
    assert controller.names == ["7"]
    assert "jobs 8" in controller.call(START)
    assert controller.names == ["7", "8"]
    assert controller.file.stat().st_mode & 0o077 == 0
    assert not (controller.state / "burst_buffer_lua_state.waystage").exists()


def test_only_its_start_changes_the_file(controller: Controller) -> None:
    controller.call(START, SETUP.format(str(controller.script)), START)
    assert controller.names == ["7"]


def test_a_job_that_was_torn_down_since_the_jobs_were_saved_has_its_buffer_again(
    controller: Controller,
) -> None:
    controller.call(SETUP.format(str(controller.script)), TEARDOWN)
    assert not (controller.hooks / "job-8").exists()
    controller.call(START)
    assert controller.names == ["7", "8"]


def test_a_job_that_had_ended_when_the_jobs_were_saved_has_none(controller: Controller) -> None:
    controller.call(SETUP.format(str(controller.script)), TEARDOWN)
    controller.saved(ago_s=-60)
    controller.call(START)
    assert controller.names == ["7"]


def test_ended_jobs_leave_a_bounded_number_of_files(controller: Controller) -> None:
    setup = SETUP.format(str(controller.script))
    controller.call(setup, TEARDOWN, *(line.replace("'8'", "'1008'") for line in (setup, TEARDOWN)))
    (ended,) = controller.hooks.glob("ended-*")
    assert "job=1008\n" in ended.read_text()


@pytest.mark.parametrize("damage", [b"", b"\x26", b"\xff" * 40])
def test_a_file_that_is_not_as_expected_stays_and_slurmctld_starts(
    controller: Controller, damage: bytes
) -> None:
    controller.call(SETUP.format(str(controller.script)))
    controller.file.write_bytes(damage)
    assert "is left as it is" in controller.call(START)
    assert controller.file.read_bytes() == damage


def test_records_that_are_damaged_or_of_an_older_version_are_passed_over(controller: Controller) -> None:
    controller.call(SETUP.format(str(controller.script)))
    good = (controller.hooks / "job-8").read_text()
    for name, record in {
        "job-9": good,
        "job-10": good.replace("job=8", "job=10").replace("uid=1001", "uid=-1"),
        "job-11": "uid=1001\ngeneration=5.1\n",
        "job-12": "",
        "ended-009": good.replace("job=8", "job=x"),
    }.items():
        (controller.hooks / name).write_text(record)
    controller.call(START)
    assert controller.names == ["7", "8"]
