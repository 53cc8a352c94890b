"""Bringing changes into force on several switches, all or none.

Arrives: open connections and the changes for each.
Leaves: per switch an `Outcome`.
Must not know: topologies, plans, why a rule changes.

Two steps, as in a two-phase commit. First every switch gets its changes as a bundle, which it checks
but does not use; then, if none objected, every bundle is committed. Within a step all switches work
at the same time. A single change needs no bundle, because it is atomic by itself. A switch without
bundles gets plain messages in the second step: if it refuses one, the others may be in force.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from waystage.interconnect import openflow_wire as wire
from waystage.interconnect.openflow_connection import Connection, Disconnected, Refusal
from waystage.interconnect.outcome import Outcome
from waystage.interconnect.rules import Change, Rule

log = logging.getLogger(__name__)

PER_CHANGE_S = 0.002
"""Added to the timeout for each change: twice what a switch of 40,000 changes a minute takes."""

_bundle_ids = itertools.count(1)


class _Work:
    """One switch's part of an installation."""

    def __init__(self, connection: Connection, changes: Sequence[Change]) -> None:
        self.connection = connection
        self.changes = changes
        self.bundle_id = next(_bundle_ids) & 0xFFFFFFFF
        self.staged = False
        self.outcome: Outcome | None = None
        self.waiting: Future[list[Refusal]] | None = None
        self.xids = range(0)

    def stage(self) -> None:
        """Open the bundle, add every change, close it."""
        link, version = self.connection, self.connection.version
        self.xids = link.next_xids(len(self.changes) + 3)
        opening = wire.bundle_control(version, self.bundle_id, wire.BUNDLE_OPEN)
        closing = wire.bundle_control(version, self.bundle_id, wire.BUNDLE_CLOSE)
        parts = [wire.with_xid(opening, self.xids[0])]
        for xid, change in zip(self.xids[1:], self.changes, strict=False):
            message = wire.with_xid(wire.encode_change(version, change), xid)
            parts.append(wire.bundle_add(version, self.bundle_id, message))
        parts.append(wire.with_xid(closing, self.xids[-2]))
        parts.append(wire.with_xid(wire.barrier(version), self.xids[-1]))
        self.waiting = link.batch(b"".join(parts), self.xids)

    def commit(self) -> None:
        """Bring the bundle into force; or, without a bundle, the changes one by one."""
        link, version = self.connection, self.connection.version
        if self.staged:
            control = wire.bundle_control(version, self.bundle_id, wire.BUNDLE_COMMIT)
            # A change refused at commit is named by the transaction id it had when it was added.
            last = link.next_xids(2)
            parts = [wire.with_xid(control, last[0]), wire.with_xid(wire.barrier(version), last[1])]
            self.waiting = link.batch(b"".join(parts), last, also=self.xids)
        else:
            self.xids = link.next_xids(len(self.changes) + 1)
            parts = [
                wire.with_xid(wire.encode_change(version, change), xid)
                for xid, change in zip(self.xids, self.changes, strict=False)
            ]
            parts.append(wire.with_xid(wire.barrier(version), self.xids[-1]))
            self.waiting = link.batch(b"".join(parts), self.xids)

    def discard(self) -> None:
        control = wire.bundle_control(self.connection.version, self.bundle_id, wire.BUNDLE_DISCARD)
        self.connection.send(control)

    def answer(self, deadline: float, timeout_s: float) -> list[Refusal]:
        """What was refused. Sets the outcome where no answer came."""
        assert self.waiting is not None
        try:
            return self.waiting.result(max(0.0, deadline - time.monotonic()))
        except Disconnected:
            self.outcome = Outcome(error="its control channel closed", unknown=True)
        except TimeoutError:
            self.connection.forget(self.waiting)
            self.connection.shut()
            self.outcome = Outcome(error=f"it did not answer within {timeout_s:.1f} s", unknown=True)
        return []

    def name_refused(self, refused: Sequence[Refusal]) -> str:
        """The change and the reason; the first that names a change, else the first."""
        in_bundle = len(self.xids) > len(self.changes) + 1  # its opening comes first
        for refusal in refused:
            index = refusal.xid - self.xids.start - in_bundle
            if 0 <= index < len(self.changes):
                return f"{describe(self.changes[index])}: {refusal.reason}"
        return f"the bundle: {refused[0].reason}"


def install(
    connections: Mapping[int, Connection | None],
    changes: Mapping[int, Sequence[Change]],
    timeout_s: float,
) -> dict[int, Outcome]:
    """See the module's text. Blocks for at most twice the timeout and what the number of changes adds."""
    outcomes: dict[int, Outcome] = {}
    works: dict[int, _Work] = {}
    for dpid, wanted in changes.items():
        connection = connections.get(dpid)
        if connection is None:
            outcomes[dpid] = Outcome(error="it is not connected")
        elif wanted:
            works[dpid] = _Work(connection, wanted)
        else:
            outcomes[dpid] = Outcome()
    timeout_s += PER_CHANGE_S * max((len(w.changes) for w in works.values()), default=0)
    if not any(outcome.error for outcome in outcomes.values()):
        _stage(works, timeout_s)
    if any(o.error for o in outcomes.values()) or any(w.outcome is not None for w in works.values()):
        for dpid, work in works.items():
            if work.outcome is None:
                if work.staged:
                    work.discard()
                work.outcome = Outcome(error="left as it was, because another switch refused", own=False)
            outcomes[dpid] = work.outcome
        return outcomes
    _commit(works, timeout_s)
    return outcomes | {dpid: work.outcome or Outcome() for dpid, work in works.items()}


def describe(change: Change) -> str:
    """A change in the words an operator knows from `ovs-ofctl`."""
    item = change.item
    if isinstance(item, Rule):
        fields = ",".join(
            f"{f.name}={f.value:#x}" + ("" if f.mask is None else f"/{f.mask:#x}") for f in item.match
        )
        what = f"rule table={item.table},priority={item.priority},{fields or 'any packet'}"
    else:
        ports = [str(getattr(s, "port", "")) for b in item.buckets for s in b.steps if hasattr(s, "port")]
        what = f"group {item.group_id} to port {', '.join(ports) or 'none'}"
    return f"{change.op} {what}"


def _stage(works: Mapping[int, _Work], timeout_s: float) -> None:
    bundled = [w for w in works.values() if len(w.changes) > 1 and w.connection.bundles]
    deadline = time.monotonic() + timeout_s
    for work in bundled:
        work.stage()
    for work in bundled:
        refused = work.answer(deadline, timeout_s)
        if work.outcome is not None:
            continue
        if any(refusal.xid == work.xids[0] for refusal in refused):
            log.info("switch %#x has no bundles: it gets plain messages", work.connection.id)
            work.connection.bundles = False
        elif refused:
            work.outcome = Outcome(error=f"it refused {work.name_refused(refused)}", lasting=True)
            work.discard()
        else:
            work.staged = True


def _commit(works: Mapping[int, _Work], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for work in works.values():
        work.commit()
    for work in works.values():
        refused = work.answer(deadline, timeout_s)
        if refused and work.outcome is None:
            reason = work.name_refused(refused)
            # A refused bundle changed nothing; of plain messages those before and after it did.
            partly = not work.staged and len(work.changes) > 1
            work.outcome = Outcome(error=f"it refused {reason}", unknown=partly, lasting=True)
