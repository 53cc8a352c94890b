"""A run that is shown while it goes on."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from harness import WAIT_S, command, ran
from waystage import events
from waystage.events import Envelope
from waystage.interconnect.generate import fat_tree
from waystage.view import server
from waystage.view.running import Running
from waystage.view.serving import Options, Serving

REPOSITORY = Path(__file__).parents[2]


def test_a_simulation_is_shown_while_it_runs(tmp_path: Path) -> None:
    demo = REPOSITORY / "experiments/demo.yaml"
    words = command(
        # More sets than it has made by the time that it is asked.
        *("run", demo, "--on", "sim", "--sets", "2000", "--out", tmp_path / "out", "--view", "127.0.0.1:0")
    )
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(text for text in process.stderr if text.startswith("open "))
        address, _, token = line.removeprefix("open ").strip().partition("#token=")
        request = urllib.request.Request(f"{address}api/about", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            about = json.loads(answer.read())
        assert about["mode"] == "run" and about["title"] == "demo (sim)" and about["epoch"] is False
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_simulation_that_has_ended_says_how_to_see_it_again(tmp_path: Path) -> None:
    demo = REPOSITORY / "experiments/demo.yaml"
    view = ("--view", "127.0.0.1:0")
    done = ran(command("run", demo, "--on", "sim", "--sets", "1", "--out", tmp_path / "out", *view))
    assert "shows it again" in done.expect().err


def test_each_set_is_marked_where_it_begins_and_ends_the_one_before() -> None:
    running = Running("demo", simulated=True)
    for number, policy in enumerate(("ecmp", "null")):
        running.begin(policy, number)
        at = (number + 1) * 10**9
        topology = events.TopologyChanged(topology=fat_tree(4))
        running(Envelope(event=topology, event_id=f"t{number}", source=f"{policy}.1", time_ns=at))
        job = events.JobStarted(job_id=f"{policy}-1", nodes=())
        running(Envelope(event=job, event_id=f"j{number}", source=f"{policy}.1", time_ns=at))
    running.feed.take(time.time_ns())
    assert running.feed.marks == [{"t": 1000, "text": "ecmp, set 1"}, {"t": 2000, "text": "null, set 2"}]
    jobs = running.feed.model.whole(0).set["jobs"]
    assert jobs["ecmp-1"]["ended"] and "ended" not in jobs["null-1"]


def test_a_page_gets_the_last_events_of_a_run_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FINISH_S", WAIT_S)
    running = Running("demo", simulated=True)
    serving = Serving(running.feed, running.fold, Options(listen="127.0.0.1:0"))
    with serving.in_thread():
        address, _, token = serving.link.partition("#token=")
        request = urllib.request.Request(f"{address}api/frames", headers={"Authorization": f"Bearer {token}"})
        answer = urllib.request.urlopen(request, timeout=WAIT_S)
        answer.readline()
        last = events.JobStarted(job_id="the last", nodes=())
        running(Envelope(event=last, event_id="j", source="ecmp.1", time_ns=10**9))
    rest = answer.read()
    answer.close()
    assert b"the last" in rest and rest.endswith(b"event: end\ndata: the run has ended\n\n")
