"""The benchmark of the simulator: it finds the lab's costs where they are known."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from harness import bench_module
from waystage.experiment.loading import load
from waystage.experiment.schema import SimOptions
from waystage.worlds.sim.runner import SimWorld


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return bench_module("sim_accuracy")


def test_costs_are_separated_from_bytes(bench: ModuleType, tmp_path: Path, repository: Path) -> None:
    """In the simulator the costs are known, so what the benchmark makes of such a run must be the same."""
    known = SimOptions(program_s=0.4, transfer_s=0.05, notify_s=0.01)
    experiment, _ = load(repository / "experiments" / "sim-costs.yaml")
    experiment = msgspec.structs.replace(experiment, sim=known)
    result = SimWorld().run(experiment, tmp_path, lambda what, share: None)
    found = bench.costs_of(result, experiment, 100e6 / 8)
    assert found.program_s == pytest.approx(0.4, rel=1e-3)
    assert found.transfer_s == pytest.approx(0.05, rel=1e-2)
    assert found.notify_s == pytest.approx(0.01, rel=1e-3)


def test_what_a_message_costs_under_load_is_found(
    bench: ModuleType, tmp_path: Path, repository: Path
) -> None:
    costs = SimOptions(program_s=0.4, transfer_s=0.05, notify_s=0.01)
    experiment, _ = load(repository / "experiments" / "sim-costs-shared.yaml")
    known = msgspec.structs.replace(costs, message_s=0.004)
    result = SimWorld().run(
        msgspec.structs.replace(experiment, sim=known), tmp_path, lambda what, share: None
    )
    took_s = statistics.mean(job.compute_s for job in result.jobs)
    assert bench.message_of(took_s, experiment, costs) == pytest.approx(0.004, abs=3e-4)
    assert bench.message_of(0.5, experiment, costs) == 0.0


def test_what_is_not_installed_is_skipped_with_the_reason(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    found = dict(bench._applications(tmp_path))
    assert set(found) == {"hpcc", "lammps"} and all("apt install" in reason for reason in found.values())
