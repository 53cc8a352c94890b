"""`waystage lab up --slurm` with an emulated global file system, and a Gfarm behind a wide-area path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import Ran, ran
from slurm_support import USER, until_true
from waystage.worlds.lab import gfarm
from waystage.worlds.lab.commands import program, why_no_file_system
from waystage.worlds.lab.slurm import available

WAYSTAGE = (sys.executable, "-m", "waystage")


def waystage(*words: str) -> Ran:
    return ran([*WAYSTAGE, *words])


def as_user(script: str, uid: int = USER) -> Ran:
    become = [program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    return ran([*become, "sh", "-ec", script], cwd=Path("/"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--far", "gfarm"), "--far is a site that Slurm's jobs stage from: give --slurm too"),
        (("--slurm", "--far-path", "wan-10ms"), "--far-path is for --far gfarm or --far empty"),
        (("--slurm", "--global-fs-shape", "nurion"), "--global-fs-shape is for --global-fs pfs"),
    ],
)
def test_options_that_need_others_say_which(words: tuple[str, ...], said: str) -> None:
    done = waystage("lab", "up", "paper", *words)
    assert done.code == 2 and said in done.err


@pytest.mark.lab
def test_the_lab_has_a_striped_file_system_of_every_user_and_a_gfarm_far_away() -> None:
    if os.geteuid() != 0 or not available() or gfarm.missing() or why_no_file_system("FUSE", {}):
        pytest.skip("needs root, Slurm, FUSE and Gfarm")
    name = f"f{os.getpid()}"
    options = ["--slurm", "--slurm-hooks", "none", "--no-controller", "--global-fs", "pfs", "--far", "gfarm"]
    try:
        up = waystage("lab", "up", "paper", "--name", name, *options, "--json")
        assert up.code == 0, up.err
        found: dict[str, Any] = json.loads(up.out)
        near, there = found["far"]["gfarm"], found["far"]["gfarm_there"]
        striped = Path(found["slurm"]["global_fs"])
        # Gfarm: written over the path, read beside its nodes.
        assert as_user(f"mkdir {near}/d; echo text >{near}/d/f").code == 0
        until_true(
            lambda: as_user(f"cat {there}/d/f").out == "text\n"
        )  # its clients keep attributes for a second
        far = waystage("lab", "exec", "--name", name, "far", "--", "ip", "-br", "addr")
        assert found["far"]["address"] in far.out
        # The striped file system: a user's files are the user's own, and have a layout.
        made = as_user(
            f"mkdir {striped}/d; echo text >{striped}/d/f; umask 0377; echo read >{striped}/d/only"
        )
        assert made.code == 0, made
        assert {path.stat().st_uid for path in (striped / "d").iterdir()} == {USER}
        assert os.getxattr(striped / "d/f", "lustre.lov")
        refused = as_user(f"cat {striped}/d/f; echo >{striped}/d/mine", uid=1)
        assert refused.out == "text\n" and "Permission denied" in refused.err
        assert as_user(f"cat {striped}/d/only", uid=1).code != 0
        run_dir = found["run_dir"]
    finally:
        down = waystage("lab", "down", "--name", name)
    assert down.code == 0 and not Path(run_dir).exists()
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert name not in left
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if run_dir in _text(path)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
