"""Starts and ends of jobs on their way from Slurm to a controller."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystage.slurm import hooks, transfers
from waystage.slurm.commands import JobLine
from waystage.slurm.errors import SlurmError
from waystage.slurm.facts import Fact, FactStore
from waystage.slurm.hook_client import Stager
from waystage.slurm.scripts import hook_script
from waystage.slurm.settings import SlurmSettings

ENVIRONMENT = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_UID": "1001",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_NAME": "a b\n   UserId=root(0)",
    "SLURM_ARRAY_JOB_ID": "11",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_JOB_NODELIST": "c[1-2]",
}
COMMENT = 'waystage:[{"direction":"in","source":"/a b","destination":"/s/%u/%A/%a","node_local":true,"verify":true}]'


def test_facts_are_delivered_in_order_and_only_once(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    store.add(Fact(job_id="9", nodes=("c1",)))
    store.add(Fact(job_id="10", nodes=("c2",)))
    store.add(Fact(job_id="9"))
    sent: list[Fact] = []
    assert FactStore(tmp_path).deliver(sent.append) == 3
    assert [(fact.job_id, fact.nodes) for fact in sent] == [("9", ("c1",)), ("10", ("c2",)), ("9", ())]
    assert store.deliver(sent.append) == 0 and not store.waiting
    assert set(store.running()) == {"10"}


def test_what_could_not_be_delivered_waits(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    for job in ("1", "2"):
        store.add(Fact(job_id=job, nodes=("c1",)))

    def away(fact: Fact) -> None:
        if fact.job_id == "2":
            raise ConnectionError

    with pytest.raises(ConnectionError):
        store.deliver(away)
    left: list[Fact] = []
    store.deliver(left.append)
    assert [fact.job_id for fact in left] == ["2"]


def test_lines_of_the_prolog_and_epilog_are_taken_in_once_and_in_order(tmp_path: Path) -> None:
    script = tmp_path / "waystage-prolog"
    settings = SlurmSettings(command=("/bin/false",), state_dir=str(tmp_path / "a b"))
    store = FactStore(tmp_path / "a b")
    for hook in ("prolog", "epilog"):
        script.write_text(hook_script(settings, hook))
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "c[1-2]", "SLURM_JOB_USER": "DOM\\ada b"}
        subprocess.run(["sh", script], env=job, check=True)
    (tmp_path / "a b/incoming/0-x").write_text("start ../x c1 ada")
    assert store.take_in() == 2 and store.take_in() == 0
    sent: list[Fact] = []
    store.deliver(sent.append)
    assert sent == [Fact(job_id="7", nodes=("c1", "c2"), user="DOM\\ada b"), Fact(job_id="7")]


def test_a_forgotten_stage_out_is_submitted_with_the_key_of_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def submit(self: Stager, submissions: list[dict[str, Any]]) -> list[tuple[int, bool]]:
        asked.extend(submissions)
        return [(5, False) for _ in submissions]

    monkeypatch.setattr(Stager, "submit", submit)
    record = (
        "uid=1001\ngeneration=8.1\nran=yes\nvalue_u=alice\nvalue_x=n\nvalue_A=7\nvalue_a=0\n"
        'transfers=[{"direction":"in","source":"/a","destination":"/b"},'
        '{"direction":"out","source":"/s/%u/%j","destination":"lab:/%x=1"}]\n'
    )
    for job in ("7", "8", "9"):
        path = tmp_path / f"job-{job}"
        path.write_text(record if job != "9" else record.replace("ran=yes\n", ""))
        os.utime(path, (0, 0))
    jobs = [JobLine(job_id="8", state="RUNNING", nodes="c1")]
    assert len(hooks.rescue(tmp_path, jobs, age_s=10)) == 1
    key = "slurm-7-8.1-2"
    (one,) = asked
    assert (one["direction"], one["job_id"], one["user"], one["key"]) == ("out", "7", "1001", key)
    assert (one["source"], one["destination"]) == ("/s/alice/7", "lab:/n=1")
    assert [path.name for path in tmp_path.iterdir()] == ["job-8"]


def test_a_damaged_fact_is_kept_aside(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    store.add(Fact(job_id="1", nodes=("c1",)))
    (waiting,) = (tmp_path / "spool").iterdir()
    waiting.write_bytes(b"{")
    store.add(Fact(job_id="2", nodes=("c1",)))
    sent: list[Fact] = []
    store.deliver(sent.append)
    assert [fact.job_id for fact in sent] == ["2"]


def test_a_job_id_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no job id"):
        FactStore(tmp_path).add(Fact(job_id="../x", nodes=("c1",)))
    with pytest.raises(SlurmError, match="SLURM_JOB_ID is not set"):
        hooks.report("prolog", {}, FactStore(tmp_path))


def test_starts_and_ends_that_no_hook_saw_are_found(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    for job in ("1", "2", "3"):
        store.add(Fact(job_id=job, nodes=("c1",)))
        os.utime(tmp_path / "running" / job, (0, 0))
    store.add(Fact(job_id="4", nodes=("c4",)))
    store.deliver(lambda fact: None)
    jobs = [
        JobLine(job_id="1", state="RUNNING", nodes="c1"),
        JobLine(job_id="2", state="COMPLETED", nodes="c1"),
        JobLine(job_id="5", state="RUNNING", nodes="c[2-3]"),
        JobLine(job_id="6", state="PENDING", nodes=""),
    ]
    assert hooks.reconcile(store, jobs, age_s=3600) == 3
    sent: list[Fact] = []
    store.deliver(sent.append)
    assert {(fact.job_id, fact.nodes) for fact in sent} == {("5", ("c2", "c3")), ("2", ()), ("3", ())}
    assert hooks.reconcile(store, jobs, age_s=3600) == 0


def test_a_job_keeps_its_transfers_in_a_comment_that_users_cannot_set() -> None:
    (transfer,) = transfers.kept_in(COMMENT)
    assert transfers.submission(1, transfer, transfers.JobFacts.of(ENVIRONMENT), "2") == {
        "direction": "in",
        "source": "/a b",
        "destination": "/s/alice/11/3",
        "job_id": "12",
        "user": "1001",
        "key": "slurm-12-r2-1",
        "node_local": True,
        "nodes": ["c1", "c2"],
        "verify": "cached",
    }


def test_the_user_is_slurmctlds_word_and_not_the_jobs() -> None:
    assert transfers.JobFacts.of(ENVIRONMENT).user_id == "1001"
    with pytest.raises(SlurmError, match="only slurmctld"):
        transfers.JobFacts.of({**ENVIRONMENT, "SLURM_JOB_UID": ""})


@pytest.mark.parametrize("name", ["..", "a/b", "", "a\nb"])
def test_a_value_that_would_change_the_directory_is_refused(name: str) -> None:
    with pytest.raises(SlurmError, match="no name of a file"):
        transfers.expanded("/s/%x", {"x": name})


def test_a_comment_changed_by_an_operator_is_said() -> None:
    assert transfers.kept_in("some text") == []
    with pytest.raises(SlurmError, match="submit the job again"):
        transfers.kept_in("waystage:[{]")


@given(st.text(max_size=300))
def test_any_comment_gives_transfers_or_an_error(text: str) -> None:
    for comment in (text, "waystage:" + text):
        try:
            assert isinstance(transfers.kept_in(comment), list)
        except SlurmError:
            pass
