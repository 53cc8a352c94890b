"""Events of MPI programs: where their ranks are, and which collectives they are about to call.

Arrives: facts from flow agents, which hear the ranks of their nodes; answers of controllers.
Leaves: typed structs.
Must not know: MPI, sockets, policies, how a collective's algorithm sends.

A program is one launch. Its id is `UID/NAME`: the flow agent puts the user id of the connected process before the name,
so that no user can speak of another's program. Every event travels under its agent's name as the scope (see `flows`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from waystage.events.base import Event, OfAgent

OBSERVED = "observed"
"""The name of an algorithm that is known by its messages alone."""

RANK_ORDER = "rank-order"
"""The algorithm of a collective that asks for an order of its communicator's ranks."""

Receivers = tuple[tuple[int, int], ...]
"""Ranks of the communicator and the bytes sent to each in one call, in the order of the first message."""

Pairs = tuple[tuple[int, int], ...]
"""Sending and receiving rank, of the program's world."""


class MpiRanksReported(OfAgent, Event, frozen=True, kw_only=True):
    """All ranks of a program on one host, as far as they have called MPI_Init; replaces what was said of that host.

    `size` is that of the program's world, `address` an IPv4 address of the host.
    """

    app: str
    agent: str
    host: str
    address: str = ""
    ranks: tuple[int, ...]
    size: int
    job_id: str | None = None
    user: str = ""


class MpiProgramFinished(OfAgent, Event, frozen=True, kw_only=True):
    """The last rank of the program on this host has ended, however it ended."""

    app: str
    agent: str
    host: str
    outcome: Literal["done", "lost"] = "done"


class CollectiveDeclared(OfAgent, Event, frozen=True, kw_only=True):
    """A collective that the program has not called before is about to send its first byte.

    `key` stands for communicator, primitive, algorithm, root and size class: who calls the same again says nothing.
    An `algorithm` of `observed` has no known steps: they come as `CollectiveObserved`, from its first call.
    `ranks` are the communicator's, in its order, as ranks of the world; `root` is a rank of the communicator, -1 without
    one; `bytes` is what the algorithm's steps are sized by (`mpi_steps`). `steps` are the pairs by step, where they were
    observed; empty: those of the algorithm.
    """

    journalled: ClassVar[bool] = False

    app: str
    agent: str
    key: str
    primitive: str
    algorithm: str
    bytes: int
    root: int = -1
    ranks: tuple[int, ...] = ()
    steps: tuple[Pairs, ...] = ()


class CollectiveObserved(OfAgent, Event, frozen=True, kw_only=True):
    """Whom ranks of one host really sent to in the first call of a declared collective, where it is not what the
    algorithm's steps say, or where these are not known.

    `sent` is by rank of the communicator. It takes the place of the same ranks' messages in the steps.
    """

    journalled: ClassVar[bool] = False

    app: str
    agent: str
    key: str
    sent: dict[int, Receivers]


class CollectivePlaced(OfAgent, Event, frozen=True, kw_only=True):
    """The controller has decided on a declared collective, and what it decided is in force on the switches.

    `group`: for one declared as `multicast`, the IPv4 address of its tree, or empty where there is none. `order`: for one
    declared as `rank-order`, the rank of the communicator at each position, or empty where the present order stays.
    """

    telemetry: ClassVar[bool] = True
    journalled: ClassVar[bool] = False

    app: str
    agent: str
    key: str
    group: str | None = None
    order: tuple[int, ...] | None = None
