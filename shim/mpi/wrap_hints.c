/* Calls beneath which the library sends messages that do not tell what they are for. */
#define _GNU_SOURCE
#include "offload.h"
#include "classify.h"
#include "kinds.h"
#include "wrap.h"

/* -- making communicators, windows and files ------------------------------------------------------ */

/* What came on the communicator made is its ranks'. */
static inline void made_communicator(struct recorder *recorder, MPI_Comm made)
{
    if (profile_route == ROUTE_UCX && made != mpi.comm_null)
        comm_map(recorder, made);
}

/* MPICH merges on an internal communicator that has the new one's ranks. */
static inline void merged_communicator(struct recorder *recorder, MPI_Comm made)
{
    made_communicator(recorder, made);
    recorder->scope = comm_key(made);
}

/* MPICH splits by type on an internal communicator, in key order: it is known only where the keys change nothing. */
static MPI_Comm in_order(MPI_Comm comm, int key)
{
    int rank = -1;
    bool changed = key != 0 && (mpi.Comm_rank(comm, &rank) != MPI_SUCCESS || key != rank);
    return changed ? mpi.comm_null : comm;
}

#define MAKES(name, comm, params, args) HINTED(name, KIND_SETUP, comm, made_communicator(recorder, *made), params, args)
#define MAKES_OTHER(name, comm, params, args) HINTED(name, KIND_SETUP, comm, , params, args)

MAKES(Comm_dup, comm, (MPI_Comm comm, MPI_Comm *made), (comm, made))
MAKES(Comm_dup_with_info, comm, (MPI_Comm comm, MPI_Info info, MPI_Comm *made), (comm, info, made))
MAKES(Comm_split, comm, (MPI_Comm comm, int color, int key, MPI_Comm *made), (comm, color, key, made))
MAKES(Comm_split_type, in_order(comm, key), (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made),
      (comm, type, key, info, made))
MAKES(Comm_create, comm, (MPI_Comm comm, MPI_Group group, MPI_Comm *made), (comm, group, made))
MAKES(Comm_create_group, comm, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made), (comm, group, tag, made))
MAKES(Intercomm_create, local, (MPI_Comm local, int leader, MPI_Comm bridge, int remote, int tag, MPI_Comm *made),
      (local, leader, bridge, remote, tag, made))
HINTED(Intercomm_merge, KIND_SETUP, comm, merged_communicator(recorder, *made),
       (MPI_Comm comm, int high, MPI_Comm *made), (comm, high, made))
MAKES(Cart_create, comm, (MPI_Comm comm, int count, const int dims[], const int periods[], int reorder, MPI_Comm *made),
      (comm, count, dims, periods, reorder, made))
MAKES(Cart_sub, comm, (MPI_Comm comm, const int remain[], MPI_Comm *made), (comm, remain, made))
MAKES(Graph_create, comm, (MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *made),
      (comm, nodes, index, edges, reorder, made))
MAKES(Dist_graph_create, comm,
      (MPI_Comm comm, int n, const int sources[], const int degrees[], const int targets[], const int weights[],
       MPI_Info info, int reorder, MPI_Comm *made),
      (comm, n, sources, degrees, targets, weights, info, reorder, made))
MAKES(Dist_graph_create_adjacent, comm,
      (MPI_Comm comm, int in, const int sources[], const int in_weights[], int out, const int targets[],
       const int out_weights[], MPI_Info info, int reorder, MPI_Comm *made),
      (comm, in, sources, in_weights, out, targets, out_weights, info, reorder, made))
MAKES(Comm_spawn, comm,
      (const char *command, char *argv[], int count, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made,
       int errors[]),
      (command, argv, count, info, root, comm, made, errors))
MAKES(Comm_connect, comm, (const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made),
      (port, info, root, comm, made))
MAKES(Comm_accept, comm, (const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made),
      (port, info, root, comm, made))
MAKES_OTHER(Win_create, comm, (void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win *made),
      (base, size, unit, info, comm, made))
MAKES_OTHER(Win_allocate, comm, (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *made),
      (size, unit, info, comm, base, made))
MAKES_OTHER(Win_allocate_shared, comm, (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *made),
      (size, unit, info, comm, base, made))
MAKES_OTHER(Win_create_dynamic, comm, (MPI_Info info, MPI_Comm comm, MPI_Win *made), (info, comm, made))
MAKES_OTHER(File_open, comm, (MPI_Comm comm, const char *name, int mode, MPI_Info info, MPI_File *made),
      (comm, name, mode, info, made))
MAKES_OTHER(File_close, mpi.comm_null, (MPI_File * file), (file))

/* -- collectives that one-sided epochs are made of -------------------------------------------------- */

HINTED(Win_fence, KIND_RMA_PROTOCOL, mpi.comm_null, , (int assert, MPI_Win win), (assert, win))

/* A handle that may come back as that of another. */
HINTED(Win_free, KIND_RMA_PROTOCOL, (window_forget(*win), mpi.comm_null), , (MPI_Win * win), (win))

/* -- collectives of a process topology ------------------------------------------------------------- */

#define NEIGHBOURS(name, params, args) HINTED(Neighbor_##name, KIND_NEIGHBOUR, c, , params, args)
#define INEIGHBOURS(name, params, args) BEGINS_AS(Ineighbor_##name, KIND_NEIGHBOUR, params, args)

/* The communicator is `c`. */
#define BEGINS_SYMBOL(symbol, kind, params, args)                                                                      \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        struct recorder *recorder = wrap_recorder();                                                                   \
        if (recorder == NULL || recorder->hint != 0)                                                                   \
            return next args;                                                                                          \
        uintptr_t scope = wrap_enter(recorder, c);                                                                     \
        classify_begin(recorder, kind);                                                                                \
        int result = next args;                                                                                        \
        recorder->hint = 0;                                                                                            \
        wrap_leave(recorder, scope);                                                                                   \
        if (result == MPI_SUCCESS)                                                                                     \
            classify_begun(recorder, c, kind);                                                                         \
        return result;                                                                                                 \
    }
#define BEGINS_AS(name, kind, params, args)                                                                            \
    BEGINS_SYMBOL(MPI_##name, kind, params, args)                                                                      \
    BEGINS_SYMBOL(PMPI_##name, kind, params, args)

NEIGHBOURS(allgather, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c),
           (s, n, t, r, m, u, c))
NEIGHBOURS(allgatherv,
           (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c),
           (s, n, t, r, m, d, u, c))
NEIGHBOURS(alltoall, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c),
           (s, n, t, r, m, u, c))
NEIGHBOURS(alltoallv,
           (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[],
            MPI_Datatype u, MPI_Comm c),
           (s, n, e, t, r, m, d, u, c))
NEIGHBOURS(alltoallw,
           (const void *s, const int n[], const MPI_Aint e[], const MPI_Datatype t[], void *r, const int m[],
            const MPI_Aint d[], const MPI_Datatype u[], MPI_Comm c),
           (s, n, e, t, r, m, d, u, c))
INEIGHBOURS(allgather,
            (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *q),
            (s, n, t, r, m, u, c, q))
INEIGHBOURS(allgatherv,
            (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c,
             MPI_Request *q),
            (s, n, t, r, m, d, u, c, q))
INEIGHBOURS(alltoall,
            (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *q),
            (s, n, t, r, m, u, c, q))
INEIGHBOURS(alltoallv,
            (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[],
             MPI_Datatype u, MPI_Comm c, MPI_Request *q),
            (s, n, e, t, r, m, d, u, c, q))
INEIGHBOURS(alltoallw,
            (const void *s, const int n[], const MPI_Aint e[], const MPI_Datatype t[], void *r, const int m[],
             const MPI_Aint d[], const MPI_Datatype u[], MPI_Comm c, MPI_Request *q),
            (s, n, e, t, r, m, d, u, c, q))

/* A communicator that is made while the program goes on. */
BEGINS_AS(Comm_idup, KIND_SETUP, (MPI_Comm c, MPI_Comm *made, MPI_Request *request), (c, made, request))

/* -- non-blocking collectives: their first message tells the tag of the later ones ------------------- */

#define BEGINS(name, kind, params, args) BEGINS_AS(name, KIND_##kind, params, args)

BEGINS(Ibarrier, BARRIER, (MPI_Comm c, MPI_Request *q), (c, q))
BEGINS(Ibcast, BCAST, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *q), (b, n, t, root, c, q))
BEGINS(Igather, GATHER,
       (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *q),
       (s, n, t, r, m, u, root, c, q))
BEGINS(Igatherv, GATHERV,
       (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, int root,
        MPI_Comm c, MPI_Request *q),
       (s, n, t, r, m, d, u, root, c, q))
BEGINS(Iscatter, SCATTER,
       (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *q),
       (s, n, t, r, m, u, root, c, q))
BEGINS(Iscatterv, SCATTERV,
       (const void *s, const int n[], const int d[], MPI_Datatype t, void *r, int m, MPI_Datatype u, int root,
        MPI_Comm c, MPI_Request *q),
       (s, n, d, t, r, m, u, root, c, q))
BEGINS(Iallgather, ALLGATHER,
       (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *q),
       (s, n, t, r, m, u, c, q))
BEGINS(Iallgatherv, ALLGATHERV,
       (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c,
        MPI_Request *q),
       (s, n, t, r, m, d, u, c, q))
BEGINS(Ialltoall, ALLTOALL,
       (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *q),
       (s, n, t, r, m, u, c, q))
BEGINS(Ialltoallv, ALLTOALLV,
       (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[],
        MPI_Datatype u, MPI_Comm c, MPI_Request *q),
       (s, n, e, t, r, m, d, u, c, q))
BEGINS(Ialltoallw, ALLTOALLW,
       (const void *s, const int n[], const int e[], const MPI_Datatype t[], void *r, const int m[], const int d[],
        const MPI_Datatype u[], MPI_Comm c, MPI_Request *q),
       (s, n, e, t, r, m, d, u, c, q))
BEGINS(Ireduce, REDUCE,
       (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c, MPI_Request *q),
       (s, r, n, t, o, root, c, q))
BEGINS(Iallreduce, ALLREDUCE, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
       (s, r, n, t, o, c, q))
BEGINS(Ireduce_scatter, REDUCE_SCATTER,
       (const void *s, void *r, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
       (s, r, n, t, o, c, q))
BEGINS(Ireduce_scatter_block, REDUCE_SCATTER_BLOCK,
       (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q), (s, r, n, t, o, c, q))
BEGINS(Iscan, SCAN, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
       (s, r, n, t, o, c, q))
BEGINS(Iexscan, EXSCAN, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *q),
       (s, r, n, t, o, c, q))
