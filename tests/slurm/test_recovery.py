"""Jobs whose burst buffer a killed slurmctld forgot: which commands Slurm gets, and that a kill in between loses none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystage.slurm import commands
from waystage.slurm.commands import JobLine
from waystage.slurm.errors import SlurmError
from waystage.slurm.hook_client import Stager
from waystage.slurm.recovery import Recovery

STARTED, AGE_S = 1000.0, 20.0
WAITING = JobLine(
    job_id="8",
    array_id="7",
    task="3",
    state="PENDING",
    nodes="",
    reason="BurstBufferStageIn",
    submitted=500.0,
)
ENDED = JobLine(job_id="9", array_id="9", state="STAGE_OUT", nodes="", submitted=500.0)
RECORD = (
    "uid=1001\ngeneration={}.1\nvalue_u=alice\nvalue_x=n\nvalue_A=9\nvalue_a=0\n"
    'transfers=[{{"direction":"out","source":"/s/%j","destination":"/d"}}]\n'
)


class Site:
    """Slurm's commands and the staging service, which note each call; a clock that is set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now, self.told = folder, STARTED, list[str]()
        self.buffer, self.out_state, self.killed_at = "staging-in", "running", ""
        self.buffers = set[str]()
        self.recovery = self.restarted()

    def restarted(self) -> Recovery:
        return Recovery(self.folder, AGE_S, clock=lambda: self.now)

    def run(self, words: list[str], **_: Any) -> str:
        if words[0] == "squeue":
            return "0\n"
        if words[1:3] == ["-o", "show"]:
            return f"JobName=x BurstBufferState=pending BurstBuffer=#B\nBurstBufferState={self.buffer} \n".replace(
                "\n", " "
            )
        if self.killed_at and self.killed_at in words:
            raise SlurmError("slurmctld does not answer")
        self.told.append(" ".join(words))
        return ""

    def call(self, stager: Stager, asked: dict[str, Any], **_: Any) -> dict[str, Any]:
        if asked["op"] == "submit":
            self.told.append(f"{asked['submission']['key']} {asked['submission']['source']}")
            return {"request": {"id": 4}}
        return {"requests": [{"state": self.out_state}]}

    def look(self, *jobs: JobLine, after_s: float = AGE_S + 1, started: float = STARTED) -> list[str]:
        """Two looks, the second a while later; the calls meanwhile."""
        self.told = []
        self.recovery.look(jobs, started, self.buffers)
        self.now += after_s
        self.recovery.look(jobs, started, self.buffers)
        return self.told


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(commands, "run", made.run)
    monkeypatch.setattr(Stager, "call", lambda stager, asked, **more: made.call(stager, asked, **more))
    return made


def test_a_forgotten_stage_in_begins_again_by_requeueing_that_task_alone(site: Site) -> None:
    (site.folder / "job-8").write_text(RECORD.format(999))
    assert site.look(WAITING) == [
        "scontrol update JobId=7_3 Requeue=1",
        "scancel 7_3",
        "scontrol requeue 7_3",
        "scontrol update JobId=7_3 StartTime=now Requeue=0",
    ]


@pytest.mark.parametrize(
    ("generation", "changes"),
    [
        (1001, {}),  # set up by this slurmctld, whose hook waits
        (999, {"reason": "Resources"}),
        (999, {"reason": "BurstBufferResources"}),  # its turn to stage has not come
        (999, {"state": "RUNNING"}),
        (0, {"submitted": 1001.0}),
    ],
)
def test_a_job_that_moves_on_by_itself_is_left_alone(site: Site, generation: int, changes: Any) -> None:
    if generation:
        (site.folder / "job-8").write_text(RECORD.format(generation))
    assert site.look(msgspec.structs.replace(WAITING, **changes)) == []


def test_a_job_whose_buffer_slurmctld_knows_is_left_to_it(site: Site) -> None:
    for job in (WAITING, ENDED):
        (site.folder / f"job-{job.job_id}").write_text(RECORD.format(999))
    site.buffers = {"8", "9"}
    assert site.look(WAITING, ENDED) == []


def test_the_buffers_that_slurmctld_knows_are_read_from_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = (
        "Name=lua DefaultPool=(null) Granularity=1 TotalSpace=0 FreeSpace=0 UsedSpace=0\n  Allocated Buffers:\n"
        "    JobID=8 CreateTime=2026-11-26T17:05:41 Pool=(null) Size=0 State=staged-in UserID=a JobID=99(1)\n"
        "    JobID=12_3(14) CreateTime=2026-11-26T17:05:41 Pool=(null) Size=0 State=staged-in UserID=a(1)\n"
        "  Per User Buffer Use:\n    UserID=a(1) Used=0\n"
    )
    monkeypatch.setattr(commands, "run", lambda words: shown)
    assert commands.buffers() == {"8", "14"}


def test_a_buffer_that_is_torn_down_for_ever_begins_again(site: Site) -> None:
    site.buffer = "teardown"
    assert "scontrol requeue 7_3" in site.look(
        msgspec.structs.replace(WAITING, reason="BurstBufferResources")
    )


def test_a_job_is_left_time_to_go_on(site: Site) -> None:
    assert site.look(WAITING, after_s=AGE_S / 2) == []


def test_no_dependent_of_a_job_is_made_to_fail(site: Site) -> None:
    (site.folder / "job-8").write_text("generation=999.1\n")
    follows = msgspec.structs.replace(
        WAITING,
        job_id="12",
        array_id="12",
        task="",
        reason="Dependency",
        dependency="afterok:7_*(unfulfilled)",
    )
    (told,) = site.look(WAITING, follows)
    assert told.startswith("scontrol update JobId=7_3 Comment=waystage: ") and "job 12 depends on it" in told
    assert site.look(WAITING, follows) == []


@pytest.mark.parametrize("killed_at", ["scancel", "requeue", "StartTime=now"])
def test_a_kill_between_its_commands_loses_no_job(site: Site, killed_at: str) -> None:
    site.killed_at = killed_at
    site.look(WAITING)
    site.killed_at, site.recovery = "", site.restarted()
    state = "PENDING" if killed_at == "scancel" else "CANCELLED"
    assert "scontrol requeue 7_3" in site.look(
        msgspec.structs.replace(WAITING, state=state), started=STARTED + 2
    )


def test_a_kill_that_undoes_a_requeue_is_repaired_and_a_users_cancel_stands(site: Site) -> None:
    site.look(WAITING)
    cancelled = msgspec.structs.replace(WAITING, state="CANCELLED", reason="None")
    assert site.look(cancelled) == []
    assert "scontrol requeue 7_3" in site.look(cancelled, started=site.now + 1)
    assert site.look(msgspec.structs.replace(WAITING, state="RUNNING")) == []
    assert not list(site.folder.glob("again-*"))


def test_a_forgotten_stage_out_is_submitted_and_its_buffer_cleared_once_it_has_ended(site: Site) -> None:
    (site.folder / "job-9").write_text(RECORD.format(900))
    submitted = "slurm-9-900.1-1 /s/9"
    assert set(site.look(ENDED)) == {submitted}
    site.out_state = "done"
    assert site.look(ENDED, after_s=1)[:2] == [submitted, "scontrol update JobId=9 BurstBuffer="]
    assert not list(site.folder.iterdir())
    assert site.look(ENDED) == []


def test_what_is_noted_of_a_job_that_slurm_has_purged_goes(site: Site) -> None:
    (site.folder / "again-5").write_text(json.dumps({"requeue": "1", "at": 0}))
    site.look()
    assert not list(site.folder.iterdir())
