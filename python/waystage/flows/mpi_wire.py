"""Messages between the ranks of MPI programs and the flow agent: one JSON object a line.

Arrives: lines of local processes that may be hostile.
Leaves: validated messages.
Must not know: sockets, users, how a message is acted on.

Strict, as `wire`. One connection speaks for one rank. Its other end is shim/paths/agent.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from waystage.flows.messages import Count, Message, Name, encoder

Rank = Annotated[int, Meta(ge=0, lt=1 << 16)]
Key = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
Word = Annotated[str, Meta(min_length=1, max_length=40, pattern="^[a-z0-9_-]+$")]

MOST_RANKS = 4096
"""Of a communicator in one line."""

Member = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
MOST_RECEIVERS = 1024
"""Of one rank in one call; as in shim/paths/sent.c."""


class MpiStart(Message, frozen=True, kw_only=True, tag="mpi-start"):
    """First line: the rank of a world of `size`, and where it is."""

    app: Annotated[str, Meta(min_length=1, max_length=128)]
    host: Annotated[str, Meta(min_length=1, max_length=128)]
    address: Annotated[str, Meta(max_length=15, pattern="^[0-9.]*$")] = ""
    rank: Rank
    size: Annotated[int, Meta(ge=1, le=1 << 16)]
    job_id: Name | None = None


class MpiCollective(Message, frozen=True, kw_only=True, tag="mpi-collective"):
    """The communicator's first rank is about to begin a collective that is new to it; see `CollectiveDeclared`."""

    key: Key
    primitive: Word
    algorithm: Word
    bytes: Count = 0
    root: Annotated[int, Meta(ge=-1, lt=1 << 16)] = -1
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=2, max_length=MOST_RANKS)]


class MpiSent(Message, frozen=True, kw_only=True, tag="mpi-sent"):
    """Rank `at` of a communicator of `size` has called a collective for the first time: whom it sent to, and how many
    bytes, as ranks of the communicator."""

    key: Key
    primitive: Word
    algorithm: Word
    bytes: Count = 0
    root: Annotated[int, Meta(ge=-1, lt=1 << 16)] = -1
    size: Annotated[int, Meta(ge=2, le=MOST_RANKS)]
    at: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    to: Annotated[tuple[tuple[Member, Count], ...], Meta(max_length=MOST_RECEIVERS)]


class MpiWait(Message, frozen=True, kw_only=True, tag="mpi-wait"):
    """Another of its ranks is there too."""

    key: Key


MpiMessage = MpiStart | MpiCollective | MpiSent | MpiWait


def placed(key: str, group: str | None = None, order: Sequence[int] | None = None) -> bytes:
    """Tells a rank that it need not wait any longer, the address of a multicast tree where it asked for one, and the
    order of its communicator's ranks where it asked for that."""
    more: dict[str, object] = {} if group is None else {"group": group}
    if order is not None:
        more["order"] = order
    return encoder.encode({"type": "mpi-placed", "key": key} | more)


def names(message: MpiMessage) -> Iterator[tuple[str, str]]:
    """What must be a usable name."""
    if isinstance(message, MpiStart):
        yield from (("program id", message.app), ("host", message.host))
        if message.job_id:
            yield "job id", message.job_id
