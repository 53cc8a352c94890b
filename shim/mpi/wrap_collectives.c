/* Blocking collectives: whether they send messages at all, and, where a message does not tell whose it is, whose it
 * is. */
#define _GNU_SOURCE
#include "offload.h"
#include "kinds.h"
#include "wrap.h"

/* Open MPI's messages have tags that tell. MPICH makes one operation of others, and what is asked for is the outer
 * one. */
static inline int enter(struct recorder *recorder, int kind, MPI_Comm comm, uintptr_t *scope)
{
    int hint = recorder->hint;
    *scope = wrap_enter(recorder, comm);
    if (profile_route == ROUTE_UCX && hint == 0)
        recorder->hint = kind;
    return hint;
}

#define BLOCKING_SYMBOL(symbol, kind, empty, params, args)                                                             \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        struct recorder *recorder = wrap_recorder();                                                                   \
        if (recorder == NULL)                                                                                          \
            return next args;                                                                                          \
        uint64_t before = recorder->activity;                                                                          \
        uintptr_t scope;                                                                                               \
        int hint = enter(recorder, kind, c, &scope);                                                                   \
        int result = next args;                                                                                        \
        recorder->hint = hint;                                                                                         \
        wrap_leave(recorder, scope);                                                                                   \
        offload_check(recorder, c, #symbol, empty, before);                                                             \
        return result;                                                                                                 \
    }
#define BLOCKING(name, kind, empty, params, args)                                                                      \
    BLOCKING_SYMBOL(MPI_##name, KIND_##kind, empty, params, args)                                                      \
    BLOCKING_SYMBOL(PMPI_##name, KIND_##kind, empty, params, args)                                                     \

/* Whether there is nothing to send; true also where the arguments do not show it. */
#define UNKNOWN true

BLOCKING(Barrier, BARRIER, false, (MPI_Comm c), (c))
BLOCKING(Bcast, BCAST, n == 0, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c), (b, n, t, root, c))
BLOCKING(Reduce, REDUCE, n == 0,
         (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c), (s, r, n, t, o, root, c))
BLOCKING(Allreduce, ALLREDUCE, n == 0, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
         (s, r, n, t, o, c))
BLOCKING(Allgather, ALLGATHER, m == 0,
         (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c), (s, n, t, r, m, u, c))
BLOCKING(Alltoall, ALLTOALL, m == 0,
         (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c), (s, n, t, r, m, u, c))
BLOCKING(Gather, GATHER, UNKNOWN,
         (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c),
         (s, n, t, r, m, u, root, c))
BLOCKING(Gatherv, GATHERV, UNKNOWN,
         (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, int root,
          MPI_Comm c),
         (s, n, t, r, m, d, u, root, c))
BLOCKING(Scatter, SCATTER, UNKNOWN,
         (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c),
         (s, n, t, r, m, u, root, c))
BLOCKING(Scatterv, SCATTERV, UNKNOWN,
         (const void *s, const int n[], const int d[], MPI_Datatype t, void *r, int m, MPI_Datatype u, int root,
          MPI_Comm c),
         (s, n, d, t, r, m, u, root, c))
BLOCKING(Allgatherv, ALLGATHERV, UNKNOWN,
         (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c),
         (s, n, t, r, m, d, u, c))
BLOCKING(Alltoallv, ALLTOALLV, UNKNOWN,
         (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[],
          MPI_Datatype u, MPI_Comm c),
         (s, n, e, t, r, m, d, u, c))
BLOCKING(Alltoallw, ALLTOALLW, UNKNOWN,
         (const void *s, const int n[], const int e[], const MPI_Datatype t[], void *r, const int m[], const int d[],
          const MPI_Datatype u[], MPI_Comm c),
         (s, n, e, t, r, m, d, u, c))
BLOCKING(Reduce_scatter, REDUCE_SCATTER, UNKNOWN,
         (const void *s, void *r, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c))
BLOCKING(Reduce_scatter_block, REDUCE_SCATTER_BLOCK, UNKNOWN,
         (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, r, n, t, o, c))
BLOCKING(Scan, SCAN, UNKNOWN, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
         (s, r, n, t, o, c))
BLOCKING(Exscan, EXSCAN, UNKNOWN, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c),
         (s, r, n, t, o, c))
