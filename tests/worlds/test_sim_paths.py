"""MPI programs with tags and declared collectives, in the simulator: the same policies as in the lab decide."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim_support import NO_COSTS, experiment
from waystage.experiment.results import RunResult, load
from waystage.worlds.base import Unfit
from waystage.worlds.sim.runner import SimWorld

DOUBLING = "lab: {mpirun: [--mca, coll_tuned_allreduce_algorithm, '3']}\n"
TREES = "lab: {mpirun: [--mca, coll_tuned_bcast_algorithm, '6', --mca, coll_tuned_reduce_algorithm, '5']}\n"
ON_ONE_EACH = """
  - name: primitive-paths
    options:
      modules:
        - {primitive: bcast, module: only-on, options: {core: 0}}
        - {primitive: reduce, module: only-on, options: {core: 1}}
"""


def run(folder: Path, policies: str, compute: str, lab: str, topology: str = "sixteen") -> RunResult:
    jobs = f"jobs: {{count: 1, nodes: 6, compute: {{{compute}}}}}\n"
    text = f"name: case\ntopology: {topology}\npolicies: {policies}\n{NO_COSTS}{lab}{jobs}"
    SimWorld().run(experiment(folder, text), folder / "out", lambda text, part: None)
    return load(folder / "out")


def test_declared_collectives_get_paths_and_take_no_longer_than_under_the_hash(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        "[ecmp, collective-paths]",
        "program: allreduce, message: 1 MB, iterations: 5, paths: true",
        DOUBLING,
    )
    took = {job.policy: job.compute_s for job in result.jobs}
    assert took["collective-paths"] < 0.9 * took["ecmp"]


def test_without_declarations_the_policy_has_nothing_to_place(tmp_path: Path) -> None:
    result = run(
        tmp_path, "[ecmp, collective-paths]", "program: allreduce, message: 1 MB, iterations: 5", DOUBLING
    )
    first, second = (job.compute_s for job in result.jobs)
    assert first == pytest.approx(second)


@pytest.mark.parametrize(("tags", "apart"), [("true", True), ("false", False)])
def test_tagged_packets_use_the_core_switch_of_their_primitive(
    tmp_path: Path, tags: str, apart: bool
) -> None:
    compute = f"program: bcast-reduce, message: 1 MB, iterations: 50, tags: {tags}"
    run(tmp_path, ON_ONE_EACH, compute, TREES, "paper")
    used = core_bytes(tmp_path / "out")
    # Fifty iterations are of MPI_Bcast alone: the second core switch carries acknowledgements.
    assert (used["core2"] < 0.05 * used["core1"]) is apart, used


def core_bytes(out: Path) -> dict[str, int]:
    """Bytes that each core switch sent."""
    found: dict[str, int] = {"core1": 0, "core2": 0}
    for row in pq.read_table(out / "timelines.parquet").to_pylist():
        if row["node"] in found and row["traffic"] == "all":
            found[row["node"]] += row["bytes"]
    return found


def test_a_program_whose_algorithm_is_not_said_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"coll_tuned_allreduce_algorithm N.*3 .recursive_doubling"):
        run(tmp_path, "[ecmp]", "program: allreduce, paths: true", "")
