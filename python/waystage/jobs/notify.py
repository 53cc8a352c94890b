"""The notificator (Endo et al. 2020, section IV.C.1): notifies the controllers of changes of jobs.

Arrives: calls of a scheduler's hooks, of the command line, of a world that runs jobs.
Leaves: job, staging and I/O events on the backplane, each confirmed by the controller's journal.
Must not know: subscribers, policies, paths.

Calls may be repeated and reordered: `state.State` defines the result (of a start and an end the later time wins; a
repeated start or an unknown end has no effect).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from waystage.backplane import SITE_ENDPOINT, Backplane, BackplaneConfig
from waystage.events import (
    Direction,
    Envelope,
    Event,
    EventError,
    IoFinished,
    IoStarted,
    JobFinished,
    JobStarted,
    StagingFinished,
    StagingStarted,
    check_names,
)

DEFAULT_ENDPOINT = SITE_ENDPOINT
"""Default endpoint of a site's controller."""


class Publisher(Protocol):
    """The part of a backplane that a notifier uses."""

    def publish(self, event: Event, *, confirm: bool = False, timeout: float = 5.0) -> Envelope: ...

    def close(self) -> None: ...


class Notifier:
    """Each method returns once the controller has journalled the event, and raises BackplaneError where it has
    not after `patience_s`.

    EventError is raised, before anything is sent, for a job id or node name that is empty, longer than 256
    bytes or holds control characters. A context manager.
    """

    def __init__(self, publisher: Publisher, *, confirm: bool = True, patience_s: float = 5.0) -> None:
        self._publisher = publisher
        self._confirm = confirm
        self._patience_s = patience_s

    @classmethod
    def connect(cls, endpoint: str = DEFAULT_ENDPOINT) -> Notifier:
        """A notifier with its own session. Raises BackplaneError if no controller answers at `endpoint`."""
        return cls(Backplane.open(BackplaneConfig(connect=(endpoint,))))

    def __enter__(self) -> Notifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._publisher.close()

    def job_started(self, job_id: str, nodes: Sequence[str], user: str = "") -> Envelope:
        """The job of `user` runs on `nodes`, its head first. A repeated start with other nodes replaces them."""
        return self.send(JobStarted(job_id=job_id, nodes=tuple(nodes), user=user))

    def job_finished(self, job_id: str) -> Envelope:
        """The job has ended; a stage-out that goes on is still followed."""
        return self.send(JobFinished(job_id=job_id))

    def staging_started(
        self, job_id: str, direction: Direction = "in", *, bytes: int = 0, nodes: Sequence[str] = ()
    ) -> Envelope:
        """Staging begins; `bytes` is the declared amount, 0 where unknown; `nodes` where the job has not started."""
        return self.send(StagingStarted(job_id=job_id, direction=direction, bytes=bytes, nodes=tuple(nodes)))

    def staging_finished(self, job_id: str, direction: Direction = "in") -> Envelope:
        return self.send(StagingFinished(job_id=job_id, direction=direction))

    def io_started(self, job_id: str, *, bytes: int = 0) -> Envelope:
        """The computing job begins to use the global file system."""
        return self.send(IoStarted(job_id=job_id, bytes=bytes))

    def io_finished(self, job_id: str) -> Envelope:
        return self.send(IoFinished(job_id=job_id))

    def send(self, event: Event) -> Envelope:
        """Publish an event that may be one; see `checked`."""
        return self._publisher.publish(checked(event), confirm=self._confirm, timeout=self._patience_s)


def checked(event: Event) -> Event:
    """`event`, where it is one that controllers accept. Raises EventError saying what is wrong with it."""
    check_names(event)
    if isinstance(event, JobStarted) and not event.nodes:
        raise EventError(f"job {event.job_id!r} starts on no node: name its nodes")
    amount = getattr(event, "bytes", 0)
    if not 0 <= amount < 2**63:
        raise EventError(f"{amount} bytes are declared: give 0 (unknown) or more, below 2^63")
    return event
