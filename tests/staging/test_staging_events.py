"""Controllers learn of stagings, also where they were away."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from harness import command, ran, wait_until
from staging_support import Stage


def controller(stage: Stage) -> subprocess.Popen[bytes]:
    ready = stage.folder / "controller.ready"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        command(
            *("controller", "--listen", endpoint(stage), "--state-dir", stage.folder / "controller"),
            *("--ready-file", ready),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**stage.environment(), "WAYSTAGE_FLOWS": "none"},
    )
    stage.started.append(process)
    wait_until(ready.exists, process)
    return process


def endpoint(stage: Stage) -> str:
    return f"unixsock-stream/{stage.folder}/backplane.sock"


def jobs(stage: Stage) -> dict[str, Any]:
    done = ran(command("state", "show", "--endpoint", endpoint(stage), "--json")).expect()
    found: dict[str, Any] = json.loads(done.out)["jobs"]
    return found


def test_a_controller_learns_start_nodes_deadline_and_end(stage: Stage) -> None:
    running = controller(stage)
    stage.start("--endpoint", endpoint(stage))
    number = stage.submit(
        *("in", stage.tree("source", files=2, size=20 << 20), stage.data / "copy"),
        # Minutes: it is not over before it was seen, however long the commands take that look.
        *("--nodes", "c[1-2]", "--deadline", "2000000000", "--bandwidth-limit", "100k"),
    )
    wait_until(lambda: jobs(stage).get("7", {}).get("staging"), running, "the start at the controller")
    job = jobs(stage)["7"]
    assert job["nodes"] == ["c1", "c2"] and job["due_ns"] == 2_000_000_000 * 10**9
    assert job["user"] == stage.user, "the user is the kernel's word, also where none was named"
    stage.stage("cancel", number).expect()
    wait_until(lambda: not jobs(stage)["7"]["staging"], running, "the end at the controller")


def test_events_wait_on_disk_for_a_controller_that_was_away(stage: Stage) -> None:
    stage.start("--endpoint", endpoint(stage))
    source = stage.tree("source")
    stage.wait(stage.submit("in", source, stage.data / "copy", job="one"))
    stage.end(signal.SIGKILL)
    running = controller(stage)
    stage.start("--endpoint", endpoint(stage))
    wait_until(lambda: "one" in jobs(stage), running, "events of before")
    wait_until(lambda: not jobs(stage)["one"]["staging"], running, "the end at the controller")
    assert stage.end() == 0
