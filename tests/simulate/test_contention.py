"""Studies of storage contention: the file, the results, the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from waystage._native import ContentionModel, FlowError, contention_imbalance
from waystage.cli.main import run
from waystage.experiment.loading import load_contention as load
from waystage.experiment.problems import ExperimentError
from waystage.simulate.contention import simulate

STUDY = """\
name: small
contention:
  targets: 6
  files: 3000
  sizes: {median: 3 MiB, sigma: 1.0, largest: 64 MiB}
  layout:
    - {to: 2 MiB, stripes: 1}
    - {stripes: all}
  ratios: [1, 4, 16]
  slowdown: [[1, 1], [4, 2], [16, 32]]
seeds: [1, 2]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def test_imbalance_is_zero_when_even_and_one_when_all_are_on_one_target() -> None:
    assert contention_imbalance(np.array([2, 2, 2], dtype=np.uint32)) == pytest.approx(0.0, abs=1e-12)
    assert contention_imbalance(np.array([0, 5, 0], dtype=np.uint32)) == 1.0


def test_a_study_gives_a_row_for_each_ratio_and_seed_and_the_same_bytes_again(
    study: Path, tmp_path: Path
) -> None:
    seen: list[float] = []
    result = simulate(load(study), lambda what, share: seen.append(share))
    assert [(row.seed, row.ratio) for row in result.rows] == [(s, r) for s in (1, 2) for r in (1, 4, 16)]
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    for out in ("a", "b"):
        assert run(["run", str(study), "--on", "sim", "--out", str(tmp_path / out), "--quiet"]) == 0
    for name in ("result.json", "report.html", "plots/imbalance.svg", "plots/loaders-chosen.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    page = (tmp_path / "a" / "report.html").read_bytes()
    (tmp_path / "a" / "report.html").unlink()
    assert run(["report", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a" / "report.html").read_bytes() == page
    assert json.loads((tmp_path / "a" / "result.json").read_text())["best_loaders"] == 4


def test_no_way_of_scheduling_beats_the_ideal_and_fewer_loaders_help_where_many_hurt(study: Path) -> None:
    result = simulate(load(study), lambda what, share: None)
    for row in result.rows:
        assert row.ideal_object_level <= row.object_level
        assert row.chosen <= row.object_level
        assert row.straggler_ratio >= 1.0
        assert 0.0 <= row.imbalance <= 1.0
    most = [row for row in result.rows if row.ratio == 16]
    assert all(row.chosen_loaders == 4 and row.chosen < 0.5 * row.object_level for row in most)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ratios: [1, 4, 16]", "ratios: [4, 1]", r"small\.yaml:9: contention\.ratios: must rise"),
        ("{stripes: all}", "{to: 8 MiB, stripes: 4}", r"small\.yaml:6: contention\.layout: ends before"),
        ("[4, 2]", "[4, 0.5]", r"small\.yaml:10: contention\.slowdown\.1: a slowdown of 0\.5"),
        ("[4, 2]", "[4, .nan]", "nan is no number"),
        ("files: 3000", "files: 50", r"small\.yaml:4: contention\.files: are fewer than the loaders"),
        ("targets: 6", "targest: 6", "did you mean targets"),
        ("median: 3 MiB", "median: 3 parsec", "no amount of bytes"),
    ],
)
def test_a_wrong_study_is_named_with_its_line(study: Path, old: str, new: str, message: str) -> None:
    assert old in STUDY
    study.write_text(STUDY.replace(old, new))
    with pytest.raises(ExperimentError, match=message):
        load(study)


def test_the_command_runs_a_study_in_the_simulator_only(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["run", str(study), "--on", "sim", "--out", str(out), "--json", "--seed", "9"]) == 0
    assert [p["ratio"] for p in json.loads(capsys.readouterr().out)["points"]] == [1, 4, 16]
    assert json.loads((out / "result.json").read_text())["study"]["seeds"] == [9]
    assert run(["run", str(study), "--on", "lab"]) == 2
    assert "--on sim" in capsys.readouterr().err
    assert run(["run", str(study), "--on", "sim", "--sets", "2"]) == 2
    assert "--sets" in capsys.readouterr().err


def test_the_model_refuses_what_makes_no_sense() -> None:
    good = {
        "targets": 2,
        "stripe_size": 1,
        "components": [(None, 1)],
        "slowdown": [(1.0, 1.0)],
        "most_loaders": 4,
    }
    sizes = np.array([1, 2], dtype=np.uint64)
    changes: tuple[dict[str, object], ...] = (
        {"targets": 0},
        {"stripe_size": 0},
        {"components": []},
        {"components": [(5, 1)]},
        {"slowdown": [(1.0, 0.0)]},
        {"most_loaders": 1 << 30},
    )
    for change in changes:
        with pytest.raises(FlowError):
            ContentionModel(sizes, **(good | change))  # type: ignore[arg-type]
    with pytest.raises(FlowError):
        ContentionModel(np.array([], dtype=np.uint64), **good)  # type: ignore[arg-type]
