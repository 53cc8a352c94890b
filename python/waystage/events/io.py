"""Events of collective I/O: applications, their aggregators, START_IO and FINISH_IO, and what applications keep to.

Arrives: facts from flow agents, which hear the I/O process of each node; settings from controllers.
Leaves: typed structs.
Must not know: MPI, sockets, policies.

An application is one launch of an MPI program. Its id is `UID/NAME`: the flow agent puts the user id of the connected
process before the name, so that no user can speak of another's application. An aggregator is `HOST` or `HOST/N`, and is
known by the application that it serves. Every event travels under its agent's name as the scope (see `flows`).

START_IO, GRANT_IO and FINISH_IO of Isaila et al., "CLARISSE", section IV.B, are `IoRequested`, `IoAdjusted` and
`IoCompleted`; the server map and its epoch are of section IV.A.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from waystage.events.base import Event, OfAgent

IoOutcome = Literal["done", "lost"]
"""`lost`: the process ended without a word, for example killed."""


class IoSettings(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an application is asked to keep to at its next control point: complete, so that repeating it is idempotent.

    `aggregators` is the server map, in the order of file domains; empty: all that are offered. `weight` is the share of
    an aggregator that serves several applications, relative to theirs; 0: wait for a grant. A grant is for one
    operation; what asks for one more waits again. Grants and waiting end at `until_ns` (time since 1970): an
    application of which no controller speaks goes on. With 0 for `until_ns` no grant is needed.
    """

    version: int = 0
    aggregators: tuple[str, ...] = ()
    weight: float = 1.0
    until_ns: int = 0


class IoApplicationStarted(OfAgent, Event, frozen=True, kw_only=True):
    """The I/O process of one node of an application runs there for `ranks` ranks. Repeated after a reconnect."""

    app: str
    agent: str
    host: str
    ranks: int = 0
    job_id: str | None = None
    user: str = ""


class IoApplicationFinished(OfAgent, Event, frozen=True, kw_only=True):
    """It has ended there. The application has ended with its last node."""

    app: str
    agent: str
    host: str
    outcome: IoOutcome = "done"


class AggregatorStarted(OfAgent, Event, frozen=True, kw_only=True):
    """An aggregator can serve the application, at its start, or again after it was lost."""

    app: str
    agent: str
    aggregator: str
    host: str = ""


class AggregatorLost(OfAgent, Event, frozen=True, kw_only=True):
    """It cannot: its process has ended, or a node process no longer reaches it."""

    app: str
    agent: str
    aggregator: str
    reason: str = ""


class AggregatorUse(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one aggregator has done for one application: totals since its start.

    `busy_ns` is the time of service: from a window of the file being complete in its buffer to the return of its write,
    and the wait for what the aggregator itself does, not for clients. `writes` counts windows.
    """

    app: str
    aggregator: str
    epoch: int = 0
    bytes: int = 0
    busy_ns: int = 0
    writes: int = 0
    queue_bytes: int = 0


class IoUse(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Of one node process: the settings that it keeps to, and the operation that waits for a grant there; 0: none."""

    app: str
    host: str
    version: int = 0
    waiting: int = 0
    bytes: int = 0


class AggregatorReport(OfAgent, Event, frozen=True, kw_only=True):
    """All aggregators and node processes of `agent`, at most once a second, and when an operation ends."""

    telemetry: ClassVar[bool] = True
    journalled: ClassVar[bool] = False

    agent: str
    servers: tuple[AggregatorUse, ...] = ()
    processes: tuple[IoUse, ...] = ()


class IoRequested(OfAgent, Event, frozen=True, kw_only=True):
    """START_IO: collective operation `op` of the application is at the control point before its data shuffle.

    `bytes` is that of all ranks, 0 where unknown; `storage` names the file system, as the nodes know it. Repeated while
    it waits. Operations count from 1.
    """

    journalled: ClassVar[bool] = False

    app: str
    agent: str
    op: int
    bytes: int = 0
    storage: str = ""


class IoCompleted(OfAgent, Event, frozen=True, kw_only=True):
    """FINISH_IO: it is at the control point after it.

    `waited_ns` is from the request to the grant, `took_ns` from then to the end. `operations` of one is usual; short
    operations that no grant is needed for are reported together, with the sums of their bytes and times.
    """

    journalled: ClassVar[bool] = False

    app: str
    agent: str
    op: int
    bytes: int = 0
    waited_ns: int = 0
    took_ns: int = 0
    operations: int = 1


class ServerMapAdopted(OfAgent, Event, frozen=True, kw_only=True):
    """All ranks of the application have begun epoch `epoch` with this server map."""

    app: str
    agent: str
    epoch: int
    aggregators: tuple[str, ...]


class IoAdjusted(OfAgent, Event, frozen=True, kw_only=True):
    """The controller asks the node processes of an application at this agent for `settings` (GRANT_IO among them).

    Sent again until reports name their version, and from time to time while they are not the default.
    """

    telemetry: ClassVar[bool] = True
    journalled: ClassVar[bool] = False

    app: str
    agent: str
    settings: IoSettings
