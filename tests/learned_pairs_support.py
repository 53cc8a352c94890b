"""A program of collectives, and what an agent and a controller know of those that it called."""

from __future__ import annotations

from waystage import events
from waystage.forecast.collectives import messages
from waystage.patterns import Pattern
from waystage.state import State

Pairs = set[tuple[int, int]]

PROGRAM = r"""
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void call(const char *what, MPI_Comm comm, int count)
{
    static int in[4096], out[4 * 4096];
    if (strcmp(what, "allreduce") == 0)
        MPI_Allreduce(in, out, count, MPI_INT, MPI_SUM, comm);
    else if (strcmp(what, "bcast") == 0)
        MPI_Bcast(in, count, MPI_INT, 0, comm);
    else if (strcmp(what, "gather") == 0)
        MPI_Gather(in, count, MPI_INT, out, count, MPI_INT, 0, comm);
    else
        MPI_Alltoall(in, count / 4, MPI_INT, out, count / 4, MPI_INT, comm);
}

/* What is in the air while collectives are called: rank 3's messages to rank 0 are of no one else. */
static void others(MPI_Request *requests)
{
    static int value, sum, got;
    MPI_Isend(&value, 1, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&got, 1, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Iscan(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[2]);
}

int main(int argc, char **argv)
{
    int calls = atoi(argv[2]), count = atoi(argv[3]);
    MPI_Request requests[3];
    MPI_Comm half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < calls; i++) {
        others(requests);
        if (argc > 4) {
            MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
            call(argv[1], half, count);
            MPI_Comm_free(&half);
        } else {
            call(argv[1], MPI_COMM_WORLD, count);
        }
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
"""


class Told:
    """What an agent published of a program, and the state that a controller makes of it."""

    def __init__(
        self, said: list[events.Event], pattern: Pattern | None, stats: list[dict[str, int]]
    ) -> None:
        self.pattern, self.stats = pattern, stats
        self.declared = [event for event in said if isinstance(event, events.CollectiveDeclared)]
        self.observed = [event for event in said if isinstance(event, events.CollectiveObserved)]
        self.state = State()
        for number, event in enumerate(said):
            if not isinstance(event, events.MpiProgramFinished):
                self.state.apply(events.Envelope(event=event, event_id=str(number), time_ns=number + 1))

    def of(self, primitive: str, size: int = 4) -> list[events.CollectiveDeclared]:
        return [e for e in self.declared if e.primitive == primitive and len(e.ranks) == size]

    def controllers(self, *declared: events.CollectiveDeclared) -> Pairs:
        """Ranks of the world that send to each other, as policies see it."""
        found: Pairs = set()
        for one in declared:
            for step in messages(one, self.state.mpi.programs[one.app].sent(one.key)):
                found |= {(one.ranks[a], one.ranks[b]) for a, b in step}
        return found

    def recorded(self, kind: str) -> Pairs:
        """The same in the profiler's record."""
        assert self.pattern is not None
        chosen = self.pattern.counted(kinds=[kind], traffic=self.pattern.sent)
        return {(int(a), int(b)) for a, b in zip(chosen.src, chosen.dst, strict=True) if a != b}
