/* One-sided operations, counted where they are called: what a put sends, a get fetches, an accumulate does both. */
#define _GNU_SOURCE
#include "comms.h"
#include "kinds.h"
#include "wrap.h"

static void move(struct recorder *recorder, MPI_Win win, int rank, int kind, MPI_Count count, MPI_Datatype type)
{
    MPI_Count size = 1;
    const struct comm_map *map;
    if (rank < 0 || (map = window_map(recorder, win)) == NULL || rank >= map->size)
        return;
    if (type != mpi.byte && mpi.Type_size_x(type, &size) != MPI_SUCCESS)
        return;
    uint64_t bytes = (uint64_t)count * (uint64_t)size;
    if (map->world[rank] == PEER_OUTSIDE) {
        recorder->outside_messages++;
        recorder->outside_bytes += bytes;
        return;
    }
    record(recorder, SENT, map->world[rank], kind, bytes);
}

#define MOVE(kind, count, type) move(recorder, w, k, KIND_##kind, count, type)

COUNTED(Put, (const void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Win w),
        (a, n, t, k, d, m, u, w), MOVE(PUT, n, t))
COUNTED(Rput,
        (const void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Win w, MPI_Request *q),
        (a, n, t, k, d, m, u, w, q), MOVE(PUT, n, t))
COUNTED(Get, (void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Win w),
        (a, n, t, k, d, m, u, w), MOVE(GET, n, t))
COUNTED(Rget, (void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Win w, MPI_Request *q),
        (a, n, t, k, d, m, u, w, q), MOVE(GET, n, t))
COUNTED(Accumulate,
        (const void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Op o, MPI_Win w),
        (a, n, t, k, d, m, u, o, w), MOVE(ACCUMULATE, n, t))
COUNTED(Raccumulate,
        (const void *a, int n, MPI_Datatype t, int k, MPI_Aint d, int m, MPI_Datatype u, MPI_Op o, MPI_Win w,
         MPI_Request *q),
        (a, n, t, k, d, m, u, o, w, q), MOVE(ACCUMULATE, n, t))

/* With MPI_NO_OP nothing goes there, and the origin's buffer means nothing. */
#define BOTH(n, t, r, v)                                                                                               \
    if (o != mpi.no_op)                                                                                                \
        MOVE(ACCUMULATE, n, t);                                                                                        \
    MOVE(GET, r, v)

COUNTED(Get_accumulate,
        (const void *a, int n, MPI_Datatype t, void *b, int r, MPI_Datatype v, int k, MPI_Aint d, int m,
         MPI_Datatype u, MPI_Op o, MPI_Win w),
        (a, n, t, b, r, v, k, d, m, u, o, w), BOTH(n, t, r, v))
COUNTED(Rget_accumulate,
        (const void *a, int n, MPI_Datatype t, void *b, int r, MPI_Datatype v, int k, MPI_Aint d, int m,
         MPI_Datatype u, MPI_Op o, MPI_Win w, MPI_Request *q),
        (a, n, t, b, r, v, k, d, m, u, o, w, q), BOTH(n, t, r, v))
COUNTED(Fetch_and_op, (const void *a, void *b, MPI_Datatype t, int k, MPI_Aint d, MPI_Op o, MPI_Win w),
        (a, b, t, k, d, o, w), BOTH(1, t, 1, t))
/* Two values go there: the new one and the one to compare with. */
COUNTED(Compare_and_swap,
        (const void *a, const void *c, void *b, MPI_Datatype t, int k, MPI_Aint d, MPI_Win w),
        (a, c, b, t, k, d, w), MOVE(ACCUMULATE, 2, t);
        MOVE(GET, 1, t))
