"""Answers to clients: submit, status, wait, cancel.

Arrives: lines with the credentials of their senders.
Leaves: one JSON line for each, after what it says is on disk.
Must not know: engines.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from waystage.local_rpc import Connection, Peer
from waystage.staging import clock
from waystage.staging.errors import Invalid, QuotaExceeded, Refused, StagingError, kind_of
from waystage.staging.queue import Queue
from waystage.staging.requests import Request, Submission, checked, shown
from waystage.staging.schedule import Limits
from waystage.staging.users import Account, account_named, account_of


class Site(Protocol):
    """The part of a stager that answers use."""

    queue: Queue

    @property
    def limits(self) -> Limits: ...

    @property
    def submitters(self) -> frozenset[int]: ...

    def cancel(self, request: Request) -> None: ...

    def changed(self) -> None: ...


log = logging.getLogger(__name__)

LONGEST_WAIT_S = 3600.0
MOST_IDS = 1000
WAITS_PER_USER = 256
FAR_S = 3600.0


class _Wait(msgspec.Struct):
    connection: Connection
    ids: list[int]
    until: float
    explain: bool


class Answers:
    """For the stager's thread."""

    def __init__(self, stager: Site) -> None:
        self._stager = stager
        self._waits: list[_Wait] = []

    def handle(self, lines: Sequence[tuple[Connection, bytes]], gone: Sequence[Connection]) -> None:
        """Handle lines in one transaction, then answer. A disk that refuses is each one's answer."""
        if gone:
            self._waits = [each for each in self._waits if each.connection not in gone]
        if not lines:
            return
        answers: list[tuple[Connection, dict[str, Any]]] = []
        try:
            with self._stager.queue.transaction():
                for connection, line in lines:
                    answer = self._answer(connection, line)
                    if answer is not None:
                        answers.append((connection, answer))
        except StagingError as error:
            answers = [(connection, _refusal(error)) for connection, _ in lines]
        for connection, answer in answers:
            connection.send(json.dumps(answer).encode("ascii"))
        self._stager.changed()

    def wake_waiters(self) -> None:
        """Answer those whose requests are all final, or whose time has passed."""
        if not self._waits:
            return
        now = time.monotonic()
        kept: list[_Wait] = []
        for each in self._waits:
            if now < each.until and any(number in self._stager.queue.open for number in each.ids):
                kept.append(each)
            else:
                found = [self._stager.queue.find(number) for number in each.ids]
                each.connection.send(
                    json.dumps(_listing([r for r in found if r is not None], each.explain)).encode("ascii")
                )
        self._waits = kept

    def next_s(self) -> float:
        """Until the time of a waiting client has passed."""
        return min((each.until for each in self._waits), default=time.monotonic() + FAR_S) - time.monotonic()

    def _answer(self, connection: Connection, line: bytes) -> dict[str, Any] | None:
        try:
            try:
                asked = json.loads(line)
            except (ValueError, RecursionError):
                raise Invalid("the line is not JSON") from None
            if not isinstance(asked, dict):
                raise Invalid("the line is not a JSON object")
            peer = connection.peer
            if os.geteuid() != 0 and not self._powerful(peer) and peer.uid != os.geteuid():
                raise Refused(
                    f"this stager runs as user {os.geteuid()} and serves that user alone: use the site's stager"
                )
            operation = asked.get("op")
            if operation == "submit":
                return self._submit(asked, peer)
            if operation == "status":
                return _listing(self._selected(asked, peer), bool(asked.get("explain")))
            if operation == "cancel":
                return self._cancel(asked, peer)
            if operation == "wait":
                return self._wait(asked, connection)
            if operation == "who":
                return {"uid": peer.uid, "for_others": os.geteuid() == 0 and self._powerful(peer)}
            raise Invalid(
                f"unknown operation {str(operation)[:40]!r}: use the same version of client and stager"
            )
        except StagingError as error:
            return _refusal(error)
        except sqlite3.Error:
            raise
        except Exception as error:
            # No line of a client may end the stager.
            log.exception("a line of user %d cannot be handled", connection.peer.uid)
            return _refusal(StagingError(f"internal error, {type(error).__name__}: report it"))

    def _powerful(self, peer: Peer) -> bool:
        """Whether the peer may act for other users."""
        return peer.uid == 0 or peer.uid in self._stager.submitters

    # -- submit -----------------------------------------------------------------------------------------

    def _submit(self, asked: dict[str, Any], peer: Peer) -> dict[str, Any]:
        try:
            submission = checked(msgspec.convert(asked.get("submission"), Submission))
        except msgspec.ValidationError as error:
            raise Invalid(f"the submission is not valid: {error}") from None
        account = self._account(submission.user, peer)
        queue, limits = self._stager.queue, self._stager.limits
        found = queue.of_key(account.uid, submission.key)
        if found is not None:
            if msgspec.structs.replace(found.submission, user="") != msgspec.structs.replace(
                submission, user=""
            ):
                raise Refused(
                    f"request {found.id} was submitted with the same --key and is a different one: use another key"
                )
            return {"request": shown(found, clock.now_ns()), "repeated": True}
        owner = queue.owner(submission.job_id)
        if owner not in (None, account.uid) and not self._powerful(peer):
            raise Refused(
                f"job {submission.job_id} belongs to another user: give the id of a job of {account.name}"
            )
        count = sum(each.uid == account.uid for each in queue.open.values())
        if count >= limits.requests_per_user:
            raise QuotaExceeded(
                f"user {account.name} has {count} unfinished requests, as many as allowed: wait for some, or cancel some"
            )
        if not submission.dry_run:
            queue.own(submission.job_id, account.uid)
        request = queue.add(
            Request(
                id=0,
                uid=account.uid,
                gid=account.gid,
                user=account.name,
                key=submission.key,
                submission=submission,
                submitted_ns=clock.now_ns(),
            )
        )
        return {"request": shown(request, clock.now_ns())}

    def _account(self, user: str, peer: Peer) -> Account:
        if os.geteuid() != 0:
            account = account_of(os.geteuid(), os.getegid())
            if user and account_named(user).uid != account.uid:
                raise Refused(f"this stager runs as user {account.name} and cannot act for {user[:64]!r}")
            return account
        if not user:
            return account_of(peer.uid, peer.gid)
        account = account_named(user)
        if account.uid != peer.uid and not self._powerful(peer):
            raise Refused("only root and users listed by `waystage stager --submitter` may give --user")
        return account

    # -- status, wait, cancel ---------------------------------------------------------------------------

    def _selected(self, asked: dict[str, Any], peer: Peer) -> list[Request]:
        """The requests that the client names and may see. Raises Refused where there is none."""
        queue = self._stager.queue
        everyone = self._powerful(peer) or os.geteuid() != 0
        ids, job_id = asked.get("ids"), asked.get("job_id")
        if ids is not None:
            if not isinstance(ids, list) or len(ids) > MOST_IDS or not all(type(each) is int for each in ids):
                raise Invalid(f"ids are at most {MOST_IDS} numbers")
            chosen = []
            for number in ids:
                request = queue.find(number) if 0 < number < 2**63 else None
                if request is None or not (everyone or request.uid == peer.uid):
                    raise Refused(f"request {number} is unknown: `waystage stage status` lists yours")
                chosen.append(request)
            return chosen
        if job_id is not None and not isinstance(job_id, str):
            raise Invalid("a job id is text")
        found = queue.listed(job_id=job_id, uid=None if everyone else peer.uid)
        if job_id is not None and not found:
            raise Refused(f"no request of job {job_id[:256]!r} is known: is the job id right?")
        return found

    def _wait(self, asked: dict[str, Any], connection: Connection) -> dict[str, Any] | None:
        requests = self._selected(asked, connection.peer)
        seconds = asked.get("timeout_s", LONGEST_WAIT_S)
        if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_WAIT_S:
            raise Invalid(f"timeout_s is a number from 0 to {LONGEST_WAIT_S:.0f}")
        explain = bool(asked.get("explain"))
        uid = connection.peer.uid
        if all(each.final for each in requests):
            return _listing(requests, explain)
        if not self._powerful(connection.peer):
            waiting = sum(each.connection.peer.uid == uid for each in self._waits)
            if waiting >= WAITS_PER_USER:
                raise QuotaExceeded("this user has too many clients that wait: end some")
        self._waits.append(_Wait(connection, [r.id for r in requests], time.monotonic() + seconds, explain))
        return None

    def _cancel(self, asked: dict[str, Any], peer: Peer) -> dict[str, Any]:
        if asked.get("ids") is None and asked.get("job_id") is None:
            raise Invalid("give request ids or a job id")
        requests = self._selected(asked, peer)
        for request in requests:
            if not request.final:
                self._stager.cancel(request)
        return _listing(requests, False)


def _listing(requests: Sequence[Request], explain: bool) -> dict[str, Any]:
    now = clock.now_ns()
    return {"requests": [shown(each, now, explain=explain) for each in requests]}


def _refusal(error: StagingError) -> dict[str, Any]:
    return {"error": str(error), "kind": kind_of(error)}
