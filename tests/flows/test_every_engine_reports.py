"""Each engine is a flow, with its class and what it reads; dropping an iterator ends its flow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flow_support import Heard
from harness import command, ran
from pfs_support import FAST, MADE_UP
from waystage import events
from waystage.flows.agent import FlowAgent
from waystage.loader import Loader
from waystage.worlds.lab import pfs

WORDS = {
    "copy": (["copy", "tree", "other"], "staging"),
    "compare": (["compare", "tree", "same", "--content"], "io"),
    "verify": (["verify", "tree", "same"], "io"),
    "dedup": (["dedup", "tree"], "io"),
    "load": (["load", "tree"], "io"),
}


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    for tree in ("tree", "same"):
        (tmp_path / tree).mkdir()
        for number in range(20):
            file = tmp_path / tree / f"{number}.bin"
            file.write_bytes(bytes([number]) * 100_000)
            os.utime(file, (1, 1))
        os.utime(tmp_path / tree, (1, 1))
    return tmp_path


@pytest.mark.parametrize("name", WORDS)
def test_a_command_is_a_flow_of_its_job(agent: FlowAgent, heard: Heard, trees: Path, name: str) -> None:
    words, traffic = WORDS[name]
    environment = {
        key: value for key, value in os.environ.items() if key not in ("WAYSTAGE_JOB", "SLURM_JOB_ID")
    }
    ran(command(*words, "--job", "4711"), cwd=trees, env=environment).expect()
    started, finished = heard.next(events.FlowStarted), heard.next(events.FlowFinished)
    assert (started.traffic, started.job_id) == (traffic, "4711")
    assert started.engine == ("compare" if name == "verify" else name)
    assert finished.flow_id == started.flow_id and finished.outcome == "done"
    assert finished.bytes_done >= 2_000_000


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["copy", "tree", "new/other"], 2),
        (["compare", "tree", "same", "--content"], 2),
        (["dedup", "tree"], 1),
        (["dedup", "catalog"], 1),
        (["load", "tree"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flow_names_the_device_of_each_tree_on_this_host(
    agent: FlowAgent, heard: Heard, trees: Path, words: list[str], ends: int
) -> None:
    ran(command("catalog", "build", "tree", "catalog"), cwd=trees).expect()
    (trees / "new").mkdir()
    ran(command(*words), cwd=trees).expect()
    started = heard.next(events.FlowStarted)
    device = os.stat(trees).st_dev
    there = (f"n1/device:{os.major(device)}:{os.minor(device)}",)
    assert [started.source.targets, started.destination.targets][:ends] == [there] * ends


@pytest.mark.lab
@pytest.mark.parametrize("words", [["copy", "point/d00000", "other"], ["dedup", "point"]], ids=" ".join)
def test_a_flow_names_the_targets_of_a_striped_tree(
    agent: FlowAgent, heard: Heard, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "point").mkdir()
    (tmp_path / "shape.yaml").write_text("name: t\n" + FAST + MADE_UP)
    pfs.mount(tmp_path / "point", pfs.load(tmp_path / "shape.yaml"))
    try:
        ran(command(*words), cwd=tmp_path).expect()
    finally:
        pfs.unmount(tmp_path / "point", force=True)
    assert heard.next(events.FlowStarted).source.targets == ("ost:0", "ost:1", "ost:2", "ost:3")


def test_the_scheduler_names_the_job_where_its_user_does_not(
    agent: FlowAgent, heard: Heard, trees: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAYSTAGE_JOB", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "88")
    assert sum(len(data) for _, data in Loader(trees / "tree")) == 2_000_000
    started = heard.next(events.FlowStarted)
    assert (started.engine, started.job_id, started.traffic) == ("load", "88", "io")
    assert heard.next(events.FlowFinished).bytes_done == 2_000_000
    assert json.loads(json.dumps(list(started.source.targets))) == list(started.source.targets)


def test_an_iterator_that_is_dropped_ends_its_flow(agent: FlowAgent, heard: Heard, trees: Path) -> None:
    iterator = iter(Loader(trees / "tree", memory_bytes=200_000))
    next(iterator)
    heard.next(events.FlowStarted)
    del iterator
    assert heard.next(events.FlowFinished).outcome == "done"
