"""`waystage run` and `waystage report` as far as they go without a lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Waystage
from waystage.experiment import results
from waystage.experiment.results import JobRecord, RunResult
from waystage.experiment.schema import Experiment, Jobs, PolicyChoice

FILE = """\
name: tiny
topology: paper
policies: [ecmp]
jobs: {count: 1, nodes: 2}
"""


def test_without_a_slurm_the_cluster_is_refused_with_a_remedy(
    waystage: Waystage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "absent.conf"))
    ran = waystage("run", "tiny.yaml", "--on", "cluster")
    assert ran.code != 0 and "use --on lab" in ran.err and ran.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_wrong_file_is_refused_before_anything_happens(waystage: Waystage, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE.replace("ecmp", "ecmq"))
    ran = waystage("run", "tiny.yaml")
    assert ran.code == 3 and "tiny.yaml:3: policies.0: unknown policy 'ecmq'" in ran.err
    ran = waystage("run", "absent.yaml")
    assert ran.code == 3 and "absent.yaml" in ran.err


def test_an_unknown_policy_on_the_command_line_is_refused(waystage: Waystage, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE)
    ran = waystage("run", "tiny.yaml", "--policy", "fastest")
    assert ran.code == 3 and "unknown policy 'fastest'" in ran.err


def test_results_of_another_run_are_not_overwritten(waystage: Waystage, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_text("{}")
    ran = waystage("run", "tiny.yaml", "--out", "old")
    assert ran.code == 2 and "not empty" in ran.err


def stored(folder: Path, **more: object) -> RunResult:
    experiment = Experiment(
        name="tiny", topology="paper", policies=(PolicyChoice(name="ecmp"),), jobs=Jobs(count=1, nodes=2)
    )
    result = RunResult(name="tiny", world="lab", experiment=experiment, **more)  # type: ignore[arg-type]
    result.jobs = [JobRecord(policy="ecmp", set=0, index=0, job_id="j", ended_at_s=7.5, compute_s=6.0)]
    results.save(folder, result, [], [])
    return result


def test_report_makes_the_page_anew_and_prints_the_table(waystage: Waystage, tmp_path: Path) -> None:
    stored(tmp_path / "run")
    ran = waystage("report", "run")
    assert ran.code == 0 and "7.50" in ran.out and "report.html" in ran.out
    assert (tmp_path / "run" / "report.html").exists()
    ran = waystage("report", "run", "--json")
    assert ran.json["summary"]["times_s"]["ecmp"]["job"]["value"] == 7.5


def test_report_says_that_a_result_does_not_count(waystage: Waystage, tmp_path: Path) -> None:
    stored(tmp_path / "run", invalid=["the machine was 1.0 % idle"])
    ran = waystage("report", "run")
    assert ran.code == 7 and "NOT VALID: the machine was 1.0 % idle" in ran.out


def test_report_of_no_run_is_refused(waystage: Waystage) -> None:
    ran = waystage("report", "nowhere")
    assert ran.code == 3 and "nowhere" in ran.err
