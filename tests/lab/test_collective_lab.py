"""Collective I/O on a real lab: the program of an experiment's phases through real aggregators, under a policy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystage.experiment import results
from waystage.experiment.compare import compare
from waystage.worlds.lab.resources import LabResources

LAB = "t_phases"

FILE = f"""\
name: phases
topology: paper
policies: ["null"]
file_systems: [{{name: scratch, targets: 2, bytes_per_s: 4 MB}}]
jobs:
  count: 1
  nodes: 2
  placement: [[c4, c5]]
  collective: {{file_system: scratch, bytes: 4 MB, operations: 3, compute_s: 0.5, buffer: 1 MiB}}
limits: {{compute_s: 60}}
lab: {{name: {LAB}}}
"""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = LabResources(LAB).anything_left
    if left:
        LabResources(LAB).remove_all(unmount_netns=False)
    assert not left


def run(folder: Path, text: str, world: str) -> subprocess.CompletedProcess[str]:
    (folder / "phases.yaml").write_text(text)
    words = [sys.executable, "-m", "waystage", "run", "phases.yaml", "--on", world, "--out", world]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.lab
def test_phases_run_in_the_lab_and_are_compared_with_the_simulator(tmp_path: Path) -> None:
    quiet = False
    for world in ("sim", "lab"):
        done = run(tmp_path, FILE, world)
        quiet = done.returncode == 0
        assert done.returncode in (0, 7), done.stderr  # 7: too busy for numbers that count
    lab = results.load(tmp_path / "lab")
    assert [job.status for job in lab.jobs] == ["done"], lab.jobs  # with its bytes verified
    assert [record.op for record in lab.io] == [1, 2, 3]
    for record in lab.io:
        assert record.took_s > 0.25, "4 MB over two targets of 4 MB/s take 0.5 s"
        assert record.epoch == 1 and record.aggregators == 2
        # No policy holds it: it waits for the answer alone, which on a busy machine may take its time.
        assert not quiet or record.waited_s < record.took_s
    assert lab.alone[0].io_s > 0.75
    found = compare(results.load(tmp_path / "sim"), lab, [], [])
    assert {"operation_s", "waited_s"} <= {error.quantity for error in found.means}
    assert "Collective operations" in (tmp_path / "lab" / "report.html").read_text()


@pytest.mark.parametrize(
    ("key", "why"), [("noise: 0.2", "noise"), ("slow: [{aggregator: 0, lost: true}]", "lost")]
)
def test_what_the_lab_does_not_emulate_is_said_before_anything_is_made(
    tmp_path: Path, key: str, why: str
) -> None:
    done = run(tmp_path, FILE.replace("buffer: 1 MiB", key), "lab")
    assert done.returncode == 3 and why in done.stderr and not (tmp_path / "lab").exists()
