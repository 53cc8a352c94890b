"""An experiment file is read, or refused with file, line, key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystage.experiment.loading import load
from waystage.experiment.problems import ExperimentError

GOOD = """\
name: small
topology: paper
policies:
  - null
jobs:
  count: 2
  nodes: 3
  arrivals: {distribution: uniform, low_s: 1, high_s: 2}
  stage_in: {bytes: 8 MB}
  compute:
    program: alltoall
    iterations: 5
    message: 640 kB
"""
NULL = GOOD.replace("- null", "- tests_support_policy:Still")


@pytest.fixture(autouse=True)
def policy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests_support_policy.py").write_text(
        "class Still:\n"
        "    name = 'still'\n"
        "    def __init__(self, style='labelled', pace=1):\n"
        "        self.style = style\n"
        "    def __call__(self, event, state):\n"
        "        return []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def write(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        load(write(folder, text))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_good_file_gives_amounts_in_bytes_and_its_topology(tmp_path: Path) -> None:
    experiment, topology = load(write(tmp_path, NULL))
    assert experiment.jobs.stage_in.bytes == 8_000_000
    assert experiment.jobs.compute.message == 640_000
    assert experiment.policies[0].shown == "tests_support_policy:Still"
    assert len(topology.compute_hosts) == 6


def test_the_policy_null_is_taken_in_quotes_and_the_bare_word_is_explained(tmp_path: Path) -> None:
    experiment, _ = load(write(tmp_path, GOOD.replace("- null", '- "null"')))
    assert experiment.policies[0].shown == "null"
    for item in ("- null", "- {name: null}", "-"):
        message = refusal(tmp_path, GOOD.replace("- null", item))
        assert message.startswith("small.yaml:4: policies.0: ") and 'write "null", in quotes' in message


@pytest.mark.parametrize(
    ("change", "line", "key", "words"),
    [
        (("message: 640 kB", "message: lots"), 13, "jobs.compute.message", "no amount of bytes"),
        (("message: 640 kB", "message: -1"), 13, "jobs.compute.message", "no amount of bytes"),
        (("iterations: 5", "iterations: many"), 12, "jobs.compute.iterations", "a whole number"),
        (("iterations: 5", "iterations: 0"), 12, "jobs.compute.iterations", ">= 1"),
        (("iterations: 5", "iteration: 5"), 12, "jobs.compute.iteration", "did you mean iterations?"),
        (("count: 2", "conut: 2"), 6, "jobs.conut", "did you mean count?"),
        (("program: alltoall", "program: alltoal"), 11, "jobs.compute.program", "did you mean alltoall?"),
        (("program: alltoall", "program: ./nothing"), 11, "jobs.compute.program", "there is no program"),
        (("topology: paper", "topology: papr"), 2, "topology", "did you mean paper?"),
        (("topology: paper", "topology: ./none.graphml"), 2, "topology", "none.graphml"),
        (
            ("distribution: uniform", "distribution: unifrom"),
            8,
            "jobs.arrivals.distribution",
            "did you mean uniform?",
        ),
        (("low_s: 1, ", ""), 8, "jobs.arrivals", "takes high_s and low_s, not high_s"),
        (("low_s: 1", "low_s: 9"), 8, "jobs.arrivals.low_s", "above high_s"),
        (("nodes: 3", "nodes: 7"), 7, "jobs.nodes", "6 computing nodes"),
        (("nodes: 3", "nodes: 3\n  placement: [[c1, c2, c9]]"), 8, "jobs.placement.0.2", "no node 'c9'"),
        (("nodes: 3", "nodes: 3\n  placement: [[c1, c1, c2]]"), 8, "jobs.placement.0", "a node twice"),
        (("nodes: 3", "nodes: 3\n  mixes: [{name: m, nodes: 7}]"), 8, "jobs.mixes.0.nodes", "7 nodes a job"),
        (
            ("nodes: 3", "nodes: 3\n  placement: [[c1, c2, c3]]\n  mixes: [{name: m, nodes: 2}]"),
            9,
            "jobs.mixes.0.nodes",
            "leave one out",
        ),
        (("nodes: 3", "nodes: 3\n  placement: [[c1, c2]]"), 8, "jobs.placement.0", "lists 2 nodes"),
        (("nodes: 3", "nodes: 3\n  storage: [c1]"), 8, "jobs.storage.0", "no storage node"),
        (("tests_support_policy:Still", "ecpm"), 4, "policies.0", "unknown policy"),
        (
            ("tests_support_policy:Still", "{name: 'tests_support_policy:Still', options: {pac: 2}}"),
            4,
            "policies.0",
            "pac",
        ),
        (("count: 2", "count: 2\n  count: 3"), 7, "count", "twice"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_key(
    tmp_path: Path, change: tuple[str, str], line: int, key: str, words: str
) -> None:
    message = refusal(tmp_path, NULL.replace(*change))
    assert message.startswith(f"small.yaml:{line}: {key}: "), message
    assert words in message


def test_a_missing_part_is_asked_for(tmp_path: Path) -> None:
    assert "count is missing" in refusal(tmp_path, NULL.replace("  count: 2\n", ""))
    assert "jobs is missing" in refusal(tmp_path, "name: x\ntopology: paper\npolicies: [ecmp]\n")


def test_two_choices_of_one_policy_need_labels(tmp_path: Path) -> None:
    twice = NULL.replace("jobs:", "  - tests_support_policy:Still\njobs:")
    assert "give one of them a label" in refusal(tmp_path, twice)
    labelled = NULL.replace("jobs:", "  - {name: 'tests_support_policy:Still', label: other}\njobs:")
    experiment, _ = load(write(tmp_path, labelled))
    assert [choice.shown for choice in experiment.policies] == ["tests_support_policy:Still", "other"]


def test_staging_without_a_storage_node_is_refused(tmp_path: Path) -> None:
    from waystage.interconnect.graphml import format_topology, read_topology

    text = format_topology(read_topology("paper")).replace(">storage<", ">compute<")
    (tmp_path / "bare.graphml").write_text(text)
    assert "no storage node" in refusal(tmp_path, NULL.replace("topology: paper", "topology: ./bare.graphml"))


@pytest.mark.parametrize(
    "text", ["", "just words", "- a list", "name: [", "\x00\x01", "a: &x [*x]", "?: ]", "{" * 400]
)
def test_what_is_no_experiment_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    assert "small.yaml" in refusal(tmp_path, text)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no such experiment file"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ExperimentError, match="not UTF-8"):
        load(tmp_path / "binary.yaml")
    with pytest.raises(ExperimentError, match="cannot be read"):
        load(tmp_path)


@settings(max_examples=150, deadline=None)
@given(
    line=st.integers(0, GOOD.count("\n") - 1),
    value=st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.booleans(), st.none()),
)
def test_no_damage_to_a_line_ends_in_anything_but_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, line: int, value: object
) -> None:
    lines = GOOD.splitlines()
    lines[line] = lines[line].split(":")[0] + f": {value}"
    folder = tmp_path_factory.mktemp("damaged")
    try:
        load(write_utf8(folder, "\n".join(lines)))
    except ExperimentError as error:
        assert str(error).count("\n") == 0


def write_utf8(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path
