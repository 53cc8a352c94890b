"""What the queue records of a request while an engine carries it out, and after.

Arrives: reports of engines, which are in their users' hands; ends of engines.
Leaves: requests in their next state, with the events that follow, in one transaction.
Must not know: processes, sockets.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import msgspec

from waystage.display import display
from waystage.events import StagingFinished, StagingStarted
from waystage.staging import clock
from waystage.staging.measured import Sample
from waystage.staging.queue import Queue
from waystage.staging.rates import estimate
from waystage.staging.requests import Choice, Request
from waystage.staging.retries import Ended, judge
from waystage.staging.schedule import Limits

log = logging.getLogger(__name__)

MOST_CHOICES = 64
MOST_TEXT = 2000


class Ledger:
    """For the stager's thread."""

    def __init__(self, queue: Queue, limits: Limits) -> None:
        self.queue, self.limits = queue, limits
        self.dirty = True
        """Whether something has changed that decisions depend on."""
        self.ends: dict[int, Ended] = {}
        self.counts: dict[int, dict[str, int]] = {}
        self.began: dict[int, int] = {}
        self.over_quota: set[int] = set()
        """Requests whose engines must be ended."""

    def begin(self, request: Request, pid: int, start: int, boot: str, now: int) -> None:
        """An engine waits for its orders; within a transaction."""
        asked = request.submission
        request.attempts += 1
        request.state, request.reason = "running", ""
        if request.last_error:
            request.reason = f"attempt {request.attempts}; the one before it: {request.last_error}"
        request.started_ns = request.started_ns or now
        request.engine_pid, request.engine_start, request.engine_boot = pid, start, boot
        request.choices = ()
        self.began[request.id] = now
        if not request.announced and not asked.dry_run:
            request.announced = True
            self.queue.announce(
                StagingStarted(
                    job_id=asked.job_id,
                    direction=asked.direction,
                    nodes=asked.nodes,
                    bytes=request.bytes_total,
                    due_ns=asked.due_ns,
                    user=request.user,
                )
            )
        self.queue.write(request)

    def wait_again(self, request: Request, reason: str) -> None:
        if request.cancelling:
            self.finish(request, "cancelled", "cancelled")
            return
        request.engine_pid = 0
        request.state, request.reason, request.not_before_ns = "queued", reason, 0
        self.queue.write(request)
        self.dirty = True

    def hear(self, request: Request, report: dict[str, Any]) -> None:
        """Note a report. Its engine is in its user's hands: what is no report changes nothing."""
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError, OverflowError):
            self.note(request, report)

    def note(self, request: Request, report: dict[str, Any]) -> None:
        """One report of an engine. Its user may have written it: it can hurt this request alone."""
        kind = report["t"]
        if kind == "progress":
            self._progress(request, report["counts"])
        elif kind == "choice" and len(request.choices) < MOST_CHOICES:
            request.choices = (*request.choices, msgspec.convert(report["choice"], Choice))
        elif kind == "pair":
            request.pair = display(str(report["pair"]).encode("utf-8", "replace"))[:300]
        elif kind == "ended":
            counts = report.get("counts")
            if counts is not None:
                self._progress(request, counts)
            if isinstance(report.get("plan"), dict):
                request.plan = report["plan"]
            ended = Ended(
                str(report["kind"])[:40],
                str(report["text"])[:MOST_TEXT],
                str(report.get("warning", ""))[:MOST_TEXT],
            )
            # Of an engine that was ended for a quota, the quota is the reason.
            self.ends.setdefault(request.id, ended)

    def _progress(self, request: Request, counts: dict[str, Any]) -> None:
        known = {name: max(0, min(int(count), 2**62)) for name, count in counts.items()}
        self.counts[request.id] = known
        request.bytes_total = max(request.bytes_total, known.get("found_bytes", 0))
        request.files_total = max(request.files_total, known.get("found", 0))
        done_before = (request.bytes_done, request.files_done)
        request.bytes_done = max(request.bytes_done, known.get("bytes", 0) + known.get("resumed_bytes", 0))
        request.files_done = max(
            request.files_done, known.get("files", 0) + known.get("same", 0) + known.get("mended", 0)
        )
        if request.last_error and (request.bytes_done, request.files_done) != done_before:
            request.last_error = ""
            if not request.cancelling:
                request.reason = ""
        most = self.limits.bytes_per_user
        if most and not request.submission.dry_run and request.id not in self.ends:
            used = sum(
                each.bytes_total
                for each in self.queue.open.values()
                if each.uid == request.uid and not each.submission.dry_run
            )
            if used > most:
                text = f"the unfinished requests of user {request.user} have {used:,} bytes, and {most:,} are allowed"
                self.ends[request.id] = Ended("quota", text)
                self.over_quota.add(request.id)

    def settle(self, request: Request, ended: Ended, counts: dict[str, int] | None = None) -> None:
        """What becomes of a request whose engine has ended."""
        now = clock.now_ns()
        began_ns = self.began.pop(request.id, now)
        with self.queue.transaction():
            request.engine_pid = 0
            if request.cancelling and ended.kind:
                self.finish(request, "cancelled", "cancelled")
                return
            verdict = judge(request, ended, self.limits.retry_for_s, now)
            request.fruitless, request.fruitless_since_ns = verdict.fruitless, verdict.fruitless_since_ns
            if verdict.state == "queued":
                request.state, request.reason, request.last_error = "queued", verdict.text, verdict.cause
                request.not_before_ns = verdict.not_before_ns
                self.queue.write(request)
                self.dirty = True
                log.info("request %d: %s", request.id, verdict.text)
                return
            if verdict.state == "done":
                request.warning = ended.warning
                if request.plan is not None:
                    self._expect(request, request.plan)
                if not request.submission.dry_run:
                    request.bytes_done, request.files_done = (
                        request.bytes_total,
                        max(request.files_done, (counts or {}).get("files", 0)),
                    )
                    if counts and request.pair and _measures(request, counts):
                        sample = Sample(counts["bytes"], counts.get("files", 0), max(0, now - began_ns) / 1e9)
                        self.queue.measured(request.uid, request.pair, sample, now)
            self.finish(request, verdict.state, verdict.text)

    def _expect(self, request: Request, plan: dict[str, Any]) -> None:
        """How long a planned request is expected to take."""
        samples, own = self.queue.samples(request.uid, request.pair)
        found = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            found = estimate(samples, int(plan.get("bytes", 0)), int(plan.get("files", 0)))
        plan["between"] = request.pair
        plan["expected"] = None if found is None else msgspec.to_builtins(found) | {"own": own}

    def finish(self, request: Request, state: Any, error: str) -> None:
        """The end of a request; within a transaction."""
        asked = request.submission
        request.state, request.error, request.reason, request.last_error = state, error, "", ""
        request.finished_ns = clock.now_ns()
        request.engine_pid = 0
        self.queue.write(request)
        self.dirty = True
        log.info(
            "request %d of user %s: %s%s", request.id, request.user, state, f": {error}" if error else ""
        )
        others = any(
            each.announced
            and each.uid == request.uid
            and each.submission.job_id == asked.job_id
            and each.submission.direction == asked.direction
            for each in self.queue.open.values()
        )
        if request.announced and not others:
            self.queue.announce(
                StagingFinished(job_id=asked.job_id, direction=asked.direction, user=request.user)
            )


def _measures(request: Request, counts: dict[str, int]) -> bool:
    """Whether the time of a request's last attempt says how fast its ends are: it moved data, and all of it."""
    limited = request.submission.rate_bytes_per_s > 0
    return counts.get("bytes", 0) > 0 and not counts.get("resumed", 0) and not limited
