/* Sends where the program calls them: all that can be seen of an MPI whose point-to-point layer is not known, and of
 * messages within a host, which do not reach UCX.
 */
#define _GNU_SOURCE
#include "comms.h"
#include "kinds.h"
#include "requests.h"
#include "wrap.h"

/* Where the point-to-point layer itself is seen, nothing is done here. */
#define wrap_recorder() (profile_route == ROUTE_PMPI || profile_route == ROUTE_UCX ? recorder_get() : NULL)

static uint64_t bytes_of(int count, MPI_Datatype type)
{
    MPI_Count size = 0;
    return mpi.Type_size_x(type, &size) == MPI_SUCCESS ? (uint64_t)size * (uint64_t)count : 0;
}

static void count(struct recorder *recorder, uint32_t peer, uint64_t bytes)
{
    if (peer == PEER_OUTSIDE) {
        recorder->outside_messages++;
        recorder->outside_bytes += bytes;
    } else {
        record(recorder, SENT, peer, KIND_P2P, bytes);
        /* What a rank sends itself does not always reach UCX, so it counts as received here. */
        if (profile_route == ROUTE_UCX && profile_receives_own(peer))
            record(recorder, RECEIVED, peer, KIND_P2P, bytes);
    }
}

static void sends(struct recorder *recorder, int n, MPI_Datatype t, int rank, MPI_Comm comm)
{
    if (rank >= 0)
        count(recorder, comm_peer(recorder, comm, rank), bytes_of(n, t));
}

#define SEND(name)                                                                                                     \
    COUNTED(name, (const void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c), (b, n, t, k, tag, c),            \
            sends(recorder, n, t, k, c))
#define ISEND(name)                                                                                                    \
    COUNTED(name, (const void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c, MPI_Request *q),                  \
            (b, n, t, k, tag, c, q), sends(recorder, n, t, k, c))

SEND(Send)
SEND(Bsend)
SEND(Ssend)
SEND(Rsend)
ISEND(Isend)
ISEND(Ibsend)
ISEND(Issend)
ISEND(Irsend)
COUNTED(Sendrecv,
        (const void *b, int n, MPI_Datatype t, int k, int tag, void *r, int m, MPI_Datatype u, int from, int with,
         MPI_Comm c, MPI_Status *s),
        (b, n, t, k, tag, r, m, u, from, with, c, s), sends(recorder, n, t, k, c))
COUNTED(Sendrecv_replace,
        (void *b, int n, MPI_Datatype t, int k, int tag, int from, int with, MPI_Comm c, MPI_Status *s),
        (b, n, t, k, tag, from, with, c, s), sends(recorder, n, t, k, c))

/* -- persistent ---------------------------------------------------------------------------------------- */

static void remember(MPI_Request request, int n, MPI_Datatype t, int rank, MPI_Comm comm)
{
    struct recorder *recorder = wrap_recorder();
    if (recorder == NULL || watch_only || rank < 0)
        return;
    struct request known = {
        .key = (uintptr_t)request,
        .type = REQUEST_PERSISTENT_SEND,
        .bytes = bytes_of(n, t),
        .peer = comm_peer(recorder, comm, rank),
    };
    if (!request_put(&known))
        recorder->lost_messages++;
}

#define SEND_INIT_SYMBOL(symbol)                                                                                       \
    EXPORT int symbol(const void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c, MPI_Request *q)                \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, (const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *));                    \
        int result = next(b, n, t, k, tag, c, q);                                                                      \
        if (result == MPI_SUCCESS)                                                                                     \
            remember(*q, n, t, k, c);                                                                                  \
        return result;                                                                                                 \
    }
#define SEND_INIT(name) SEND_INIT_SYMBOL(MPI_##name) SEND_INIT_SYMBOL(PMPI_##name)

SEND_INIT(Send_init)
SEND_INIT(Bsend_init)
SEND_INIT(Ssend_init)
SEND_INIT(Rsend_init)

/* Also where the point-to-point layer is seen: a started request does not go through its table. */
static void start(MPI_Request request, MPI_Request now)
{
    struct recorder *recorder = recorder_get();
    struct request known;
    if (recorder == NULL || !request_get((uintptr_t)request, &known))
        return;
    if (known.type == REQUEST_PERSISTENT_SEND) {
        recorder->activity++;
        count(recorder, known.peer, known.bytes);
    }
    /* Open MPI may put another request in the place of one whose last message is still in flight. */
    if (now != request) {
        known.key = (uintptr_t)now;
        request_put(&known);
    }
}

static void starting(MPI_Request request)
{
    request_activate((uintptr_t)request);
}

#define START_SYMBOL(symbol)                                                                                           \
    EXPORT int symbol(MPI_Request *q)                                                                                  \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, (MPI_Request *));                                                                         \
        struct recorder *recorder = profile_route != ROUTE_NONE && !watch_only ? recorder_get() : NULL;                \
        if (recorder == NULL || recorder->calls > 0)                                                                   \
            return next(q);                                                                                            \
        MPI_Request before = *q;                                                                                       \
        starting(before);                                                                                              \
        recorder->calls++;                                                                                             \
        int result = next(q);                                                                                          \
        recorder->calls--;                                                                                             \
        if (result == MPI_SUCCESS)                                                                                     \
            start(before, *q);                                                                                         \
        return result;                                                                                                 \
    }
START_SYMBOL(MPI_Start)
START_SYMBOL(PMPI_Start)

/* What MPI_Startall does, said one by one, since it may put other requests in the place of these. */
#define START_ALL_SYMBOL(symbol, one)                                                                                  \
    EXPORT int symbol(int n, MPI_Request q[])                                                                          \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, (int, MPI_Request *));                                                                    \
        if (profile_route == ROUTE_NONE || watch_only)                                                                 \
            return next(n, q);                                                                                         \
        for (int i = 0; i < n; i++) {                                                                                  \
            int result = one(&q[i]);                                                                                   \
            if (result != MPI_SUCCESS)                                                                                 \
                return result;                                                                                         \
        }                                                                                                              \
        return MPI_SUCCESS;                                                                                            \
    }
START_ALL_SYMBOL(MPI_Startall, MPI_Start)
START_ALL_SYMBOL(PMPI_Startall, PMPI_Start)
