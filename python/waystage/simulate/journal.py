"""When each job of a run arrived, started and ended.

Arrives: these events, as they happen.
Leaves: a record for every job that arrived.
Must not know: why they happened.
"""

from __future__ import annotations

import msgspec

from waystage.simulate.arrivals import Submission
from waystage.simulate.records import JobTimes


class Journal:
    """Jobs by number."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobTimes] = {}

    def arrived(self, submission: Submission) -> None:
        self._jobs[submission.job] = JobTimes(
            job=submission.job,
            source=submission.source,
            submitted_s=submission.at_s,
            started_s=None,
            ended_s=None,
            status="waiting",
        )

    def started(self, job: int, hosts: tuple[int, ...], at_s: float) -> None:
        self._jobs[job] = msgspec.structs.replace(
            self._jobs[job], started_s=at_s, hosts=hosts, status="running"
        )

    def ended(self, job: int, at_s: float) -> None:
        self._jobs[job] = msgspec.structs.replace(self._jobs[job], ended_s=at_s, status="done")

    def records(self) -> tuple[JobTimes, ...]:
        """In order of arrival."""
        return tuple(self._jobs[job] for job in sorted(self._jobs))
