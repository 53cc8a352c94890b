"""A controller for one set of jobs, with a backplane session to it.

Arrives: a lab, a policy with its options.
Leaves: a running controller whose paths are in force, and a way to publish and listen; afterwards neither.
Must not know: experiments, jobs.

It is the very `waystage controller` of a site, not a stand-in: what is measured is what would run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from waystage.backplane import Backplane, BackplaneConfig, BackplaneError
from waystage.state import State
from waystage.worlds.lab.commands import environment
from waystage.worlds.lab.controller_process import last_words
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.lab import Lab

START_LIMIT_S = 30.0
"""From start to paths in force: about two seconds alone, several on a machine that is busy otherwise."""

COUNTED_EVERY_S = 0.1
"""A switch-over takes some ten milliseconds, and its effect on traffic less than a second."""

STOP_LIMIT_S = 5.0
_POLL_S = 0.05


class ControlSession:
    """A context manager; inside it `backplane` is open and paths are in force."""

    backplane: Backplane

    def __init__(self, lab: Lab, policy: str, options: Mapping[str, Any], *, name: str) -> None:
        self.name = name
        self._lab = lab
        self._policy = policy
        self._options = dict(options)
        # A new folder for every start: the journal of another policy would be resumed.
        self._folder = lab.resources.controller / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._folder / "controller.log"

    def __enter__(self) -> ControlSession:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self._process = self._lab.fabric_exec(
                    self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
                )
            deadline = time.monotonic() + START_LIMIT_S
            self.backplane = self._connect(deadline)
            self._wait_for_paths(deadline)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "backplane"):
            self.backplane.close()
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def check(self) -> None:
        """Raises LabError where the controller has ended by itself; the message holds its last words."""
        if self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise LabError(f"the lab's controller {how}: {last_words(self.log)}")

    def _command(self) -> list[str]:
        settings = {
            "policy": self._policy,
            "policy_options": self._options,
            "topology": str(self._lab.topology_file),
            "openflow": {"listen": self._lab.controller_listen, "part_s": COUNTED_EVERY_S},
            "state_dir": str(self._folder / "state"),
            "backplane": {"name": "lab-controller", "listen": [self._lab.backplane_endpoint]},
        }
        file = self._folder / "controller.yaml"
        file.write_text(json.dumps(settings, indent=1), encoding="utf-8")  # JSON is YAML
        return [sys.executable, "-m", "waystage", "controller", "--config", str(file)]

    def _connect(self, deadline: float) -> Backplane:
        while True:
            self.check()
            try:
                return Backplane.open(
                    BackplaneConfig(connect=(self._lab.backplane_endpoint,), name="lab-runner")
                )
            except BackplaneError as error:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"the lab's controller opened no backplane within {START_LIMIT_S:.0f} s: {error}"
                    ) from None
            time.sleep(_POLL_S)

    def _wait_for_paths(self, deadline: float) -> None:
        while True:
            self.check()
            try:
                state = State.restore(bytes(self.backplane.snapshot(1.0).state))
                # A policy that asks for nothing leaves the switches with the controller's own first plan.
                if state.in_force is not None and state.requested in (None, state.in_force):
                    return
            except BackplaneError:
                pass  # it listens before it answers
            if time.monotonic() > deadline:
                raise LabError(
                    f"the lab's controller brought no paths in force within {START_LIMIT_S:.0f} s: {last_words(self.log)}"
                )
            time.sleep(_POLL_S)


def _environment() -> dict[str, str]:
    """Without the settings of a site whose commands may be used in the same shell."""
    foreign = ("WAYSTAGE_ENDPOINT", "WAYSTAGE_CONFIG", "WAYSTAGE_CONTROLLER_CONFIG", "NOTIFY_SOCKET")
    return {name: value for name, value in environment().items() if name not in foreign}
