"""The part of the flow agent that hears the ranks of MPI programs on its node.

Arrives: messages of local processes, with the kernel's word on their user; `CollectivePlaced` from the controller.
Leaves: events of MPI programs; the word to ranks that they may begin.
Must not know: the backplane, policies, MPI.

The id of a program begins with the user id of the connected process: what one user says can only be about their own
programs. A rank ends with its connection; a program, on its host, with its last rank there.
"""

from __future__ import annotations

from collections.abc import Callable

from waystage.events import (
    CollectiveDeclared,
    CollectiveObserved,
    CollectivePlaced,
    Event,
    MpiProgramFinished,
    MpiRanksReported,
)
from waystage.flows import mpi_wire
from waystage.flows.allowance import AllowanceOfUsers
from waystage.local_rpc import Connection
from waystage.mpi_steps import Receivers, receivers

GATHER_S = 0.005
"""Ranks of a node that come within this time are reported together."""

PLACED_KEPT = 1024
"""Keys of one program that need no wait."""

DECLARED_PER_S, DECLARED_BURST = 100.0, 1000.0
"""Collectives that one user may declare: each is an event and a decision."""

COMPARED_PAIRS = 4096
"""Of a collective whose ranks' messages are compared with the algorithm's here; a larger one's are all published."""

PREDICTED_KEPT = 64
"""Collectives whose steps are kept for the comparison: first calls of all programs at a time."""

Say = Callable[[Callable[[], Event]], None]
Place = tuple[str, str]
"""Program and host."""


class _Program:
    """Of one program: its ranks here, by host; keys that are placed; who waits for others."""

    def __init__(self) -> None:
        self.ranks: dict[str, dict[Connection, int]] = {}
        self.placed: dict[str, str | None] = {}
        self.waiting: dict[str, list[Connection]] = {}


class MpiPrograms:
    """`say` publishes, later; `later` calls back in the server's thread; `user_of` names a user, in the publisher's."""

    def __init__(
        self,
        agent: str,
        say: Say,
        user_of: Callable[[int], str],
        later: Callable[[float, Callable[[], object]], None],
        *,
        most: int,
    ) -> None:
        self._agent, self._say, self._user_of, self._later, self._most = agent, say, user_of, later, most
        self._starts: dict[Connection, tuple[str, mpi_wire.MpiStart]] = {}
        self._programs: dict[str, _Program] = {}
        self._to_report: set[Place] = set()
        self._declared = AllowanceOfUsers(DECLARED_PER_S, DECLARED_BURST)
        self._sent: dict[tuple[str, str], dict[int, Receivers]] = {}
        self._predicted: dict[tuple[str, str], dict[int, frozenset[int]] | None] = {}

    def line(self, connection: Connection, message: mpi_wire.MpiMessage, now: float) -> str:
        """Act on a message; why it is refused, or nothing."""
        if isinstance(message, mpi_wire.MpiStart):
            return self._start(connection, message)
        if connection not in self._starts:
            return "a message of a rank before its start"
        app, _ = self._starts[connection]
        program = self._programs[app]
        if isinstance(message, mpi_wire.MpiSent):
            return self._heard(connection, app, message, now)
        if message.key in program.placed:
            connection.send(mpi_wire.placed(message.key, program.placed[message.key]))
            return ""
        program.waiting.setdefault(message.key, []).append(connection)
        if isinstance(message, mpi_wire.MpiCollective):
            if not self._declared.take(connection.peer.uid, now):
                return "this user declares too many collectives: no more are taken for a while"
            # A declaration of a program that is not known yet would be lost.
            start = self._starts[connection][1]
            self._report((app, start.host), start, connection.peer.uid)
            self._say(lambda: self._declaration(app, message))
        return ""

    def placed(self, event: CollectivePlaced) -> None:
        """Paths of this collective are in force."""
        program = self._programs.get(event.app)
        if program is None:
            return
        if event.group != "" and event.order is None:  # without a tree, the program may ask again
            program.placed[event.key] = event.group
        while len(program.placed) > PLACED_KEPT:
            del program.placed[next(iter(program.placed))]
        for connection in program.waiting.pop(event.key, ()):
            connection.send(mpi_wire.placed(event.key, event.group, event.order))

    def closed(self, connection: Connection) -> None:
        found = self._starts.pop(connection, None)
        if found is None:
            return
        app, start = found
        program = self._programs[app]
        here = program.ranks[start.host]
        del here[connection]
        for key, waiting in list(program.waiting.items()):
            program.waiting[key] = [other for other in waiting if other is not connection]
            if not program.waiting[key]:
                del program.waiting[key]
        if here:
            return
        del program.ranks[start.host]
        if not program.ranks:
            del self._programs[app]
        self._to_report.discard((app, start.host))
        self._say(lambda: MpiProgramFinished(app=app, agent=self._agent, host=start.host))

    # -- inside ------------------------------------------------------------------------------------------

    def _start(self, connection: Connection, message: mpi_wire.MpiStart) -> str:
        if connection in self._starts:
            return "this connection speaks for a rank already: open another"
        if message.rank >= message.size:
            return f"rank {message.rank} is none of a world of {message.size}"
        if len(self._starts) >= self._most:
            return "this node has as many ranks as its agent takes"
        app = f"{connection.peer.uid}/{message.app}"
        self._starts[connection] = app, message
        program = self._programs.setdefault(app, _Program())
        program.ranks.setdefault(message.host, {})[connection] = message.rank
        place = app, message.host
        if place not in self._to_report:
            self._to_report.add(place)
            uid = connection.peer.uid
            self._later(GATHER_S, lambda: self._report(place, message, uid))
        return ""

    def _report(self, place: Place, start: mpi_wire.MpiStart, uid: int) -> None:
        if place not in self._to_report:
            return
        self._to_report.discard(place)
        app, host = place
        ranks = tuple(sorted(set(self._programs[app].ranks[host].values())))
        self._say(
            lambda: MpiRanksReported(
                app=app,
                agent=self._agent,
                host=host,
                address=start.address,
                ranks=ranks,
                size=start.size,
                job_id=start.job_id or None,
                user=self._user_of(uid),
            )
        )

    def _heard(self, connection: Connection, app: str, message: mpi_wire.MpiSent, now: float) -> str:
        """Whom a rank sent to; told only where it is not what was predicted."""
        if message.at >= message.size or any(rank >= message.size for rank, _ in message.to):
            return f"a rank that is none of a communicator of {message.size}"
        collective = app, message.key
        if collective not in self._predicted:
            if not self._declared.take(connection.peer.uid, now):
                return ""  # what was predicted stays
            while len(self._predicted) >= PREDICTED_KEPT:
                del self._predicted[next(iter(self._predicted))]
            self._predicted[collective] = receivers(
                message.primitive,
                message.algorithm,
                message.size,
                message.bytes,
                message.root,
                most=COMPARED_PAIRS,
            )
        predicted = self._predicted[collective]
        if predicted is not None and predicted[message.at] == {rank for rank, _ in message.to}:
            return ""
        if collective not in self._sent:
            self._sent[collective] = {}
            self._later(GATHER_S, lambda: self._observed(collective))
        self._sent[collective][message.at] = message.to
        return ""

    def _observed(self, collective: tuple[str, str]) -> None:
        sent = self._sent.pop(collective)
        app, key = collective
        if app in self._programs:
            self._say(lambda: CollectiveObserved(app=app, agent=self._agent, key=key, sent=sent))

    def _declaration(self, app: str, message: mpi_wire.MpiCollective) -> Event:
        return CollectiveDeclared(
            app=app,
            agent=self._agent,
            key=message.key,
            primitive=message.primitive,
            algorithm=message.algorithm,
            bytes=message.bytes,
            root=message.root,
            ranks=message.ranks,
        )
