"""A lab's Slurm as the cluster of a run: its controllers, its storage hosts, the way into its namespaces.

Arrives: the path of a lab's slurm.conf.
Leaves: for each set a controller of its policy; afterwards the lab's own controller again.
Must not know: jobs, Slurm's commands.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from waystage.backplane import Backplane
from waystage.experiment.checks import policy_options
from waystage.experiment.schema import Experiment, PolicyChoice
from waystage.worlds.lab import collective
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.daemons import Daemon
from waystage.worlds.lab.lab import Lab
from waystage.worlds.lab.processes import end
from waystage.worlds.lab.resources import RUN_ROOT, LabResources
from waystage.worlds.lab.session import ControlSession
from waystage.worlds.lab.staging import StagingServices

CONTROLLER = "the controller"


class LabSite:
    """A context manager: inside, storage hosts serve files. Raises LabError where the lab is not up."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._services = StagingServices(lab)
        self._policy: str | None = None

    @property
    def name(self) -> str:
        return self._lab.name

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before Slurm's commands."""
        return tuple(self._lab.resources.enter_slurm())

    @property
    def endpoint(self) -> str:
        return self._lab.backplane_endpoint

    def __enter__(self) -> LabSite:
        self._services.start()
        self._end_controller()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._services.stop()
        if self._policy is not None:
            start_controller(self._lab, self._policy)

    @contextlib.contextmanager
    def controller(self, choice: PolicyChoice, experiment: Experiment, number: int) -> Iterator[Backplane]:
        """A controller for one set, and a session to it."""
        name = f"{choice.shown}-{number + 1}-{os.getpid()}"
        with ControlSession(
            self._lab, choice.name, policy_options(choice, experiment, number), name=name
        ) as control:
            yield control.backplane

    def file_systems(self, experiment: Experiment) -> AbstractContextManager[None]:
        """Inside, those of the experiment's collective I/O are mounted. Raises LabError."""
        return collective.storage(self._lab, experiment)

    def check(self) -> None:
        """Raises LabError naming what has died."""
        self._lab.check()
        self._services.check()

    def _end_controller(self) -> None:
        """End the controller that `lab up` started: it holds the address that each set's controller needs."""
        daemons = Daemon.read_all(self._lab.resources.daemons)
        for daemon in daemons:
            if daemon.name == CONTROLLER:
                self._policy = _policy_of(daemon.process.pid)
                end(daemon.process)
        Daemon.write_all(self._lab.resources.daemons, [d for d in daemons if d.name != CONTROLLER])


def _policy_of(pid: int) -> str:
    """The policy in a controller's command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[words.index("--policy") + 1]
    except (OSError, ValueError, IndexError):
        return "ecmp"


def lab_of(slurm_conf: str) -> LabSite | None:
    """The lab whose Slurm this is; None where it is none. Raises LabError where the lab is not up."""
    path = Path(slurm_conf)
    if not path.is_relative_to(RUN_ROOT):
        return None
    name = path.relative_to(RUN_ROOT).parts[0]
    if LabResources(name).slurm_conf != path:
        return None
    return LabSite(Lab.attach(name))
