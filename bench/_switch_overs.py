"""Switch-overs on a lab: staging is announced, and the paths change. Used by `switching` and `probes`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from waystage.backplane import Backplane, BackplaneConfig
from waystage.bench import BenchError
from waystage.events import PathsChanged
from waystage.jobs.notify import Notifier
from waystage.worlds.lab.lab import Lab

CHANGE_TIMEOUT_S = 20.0


class SwitchOvers:
    """Announces that a job's staging begins or ends, and waits for the paths to change."""

    def __init__(self, lab: Lab, notifier: Notifier, backplane: Backplane) -> None:
        self.notifier = notifier
        self._log = lab.resources.controller / "controller.log"
        self._changes = backplane.watch(PathsChanged)

    def switch(self, job: str, *, on: bool) -> tuple[PathsChanged, float]:
        """The change, and the milliseconds from the announcement to its event. Raises BenchError."""
        announce = self.notifier.staging_started if on else self.notifier.staging_finished
        cause = announce(job, "in")
        deadline = time.monotonic() + CHANGE_TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            arrived = self._changes.get(left)
            change = None if arrived is None else arrived.event
            if not isinstance(change, PathsChanged) or change.cause_id != cause.event_id:
                continue
            if change.plan.separated == on:
                assert arrived is not None
                return change, (arrived.time_ns - cause.time_ns) / 1e6
        state = "began" if on else "ended"
        raise BenchError(
            f"the paths had not changed {CHANGE_TIMEOUT_S:.0f} s after staging {state}: see {self._log}"
        )


@contextmanager
def switch_overs(lab: Lab) -> Iterator[SwitchOvers]:
    """Connected to the lab's controller while the body runs."""
    config = BackplaneConfig(connect=(lab.backplane_endpoint,))
    with Notifier.connect(lab.backplane_endpoint) as notifier, Backplane.open(config) as backplane:
        yield SwitchOvers(lab, notifier, backplane)
