"""`scripts/delays.py`: what it delays goes on afterwards as before, and the command's status is its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness import wait_until
from waystage.bench import load_module

SCRIPT = Path(__file__).parents[2] / "scripts" / "delays.py"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to restore a scheduling policy")


def test_what_is_delayed_goes_on_as_before() -> None:
    made = load_module(SCRIPT)
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"]) as running:
        delays = made.Delays(running.pid, random.Random(1))
        seen: set[str] = set()

        def delayed() -> bool:
            delays.step()
            for process in delays._below():
                seen.add("stopped" if made._state(process) == "T" else "")
                seen.add("idle" if os.sched_getscheduler(process) == os.SCHED_IDLE else "")
            return seen >= {"stopped", "idle"}

        try:
            wait_until(delayed)
            delays.close()
            for process in delays._below():
                wait_until(lambda p=process: made._state(p) == "S")  # type: ignore[misc]
                assert os.sched_getscheduler(process) == os.SCHED_OTHER
        finally:
            delays.close()
            for process in delays._below():
                os.kill(process, 9)
            running.kill()


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", 143)]
)
def test_the_status_is_the_commands(code: str, status: int) -> None:
    words = [sys.executable, SCRIPT, "--seed", "4", "--", sys.executable, "-c", code]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (status, "delays with --seed 4\n")
