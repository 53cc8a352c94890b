/* Receives: of which communicator they are, so that what comes beneath MPI is known by its context. Open MPI's layer
 * tells that itself.
 */
#define _GNU_SOURCE
#include "wrap.h"

#ifndef OPEN_MPI

#define ON_SYMBOL(symbol, params, args)                                                                                \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        struct recorder *recorder = profile_route == ROUTE_UCX ? recorder_get() : NULL;                                \
        if (recorder != NULL && c != mpi.comm_null)                                                                    \
            comm_map(recorder, c);                                                                                     \
        return next args;                                                                                              \
    }
#define ON(name, params, args) ON_SYMBOL(MPI_##name, params, args) ON_SYMBOL(PMPI_##name, params, args)

ON(Recv, (void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c, MPI_Status *s), (b, n, t, k, tag, c, s))
ON(Irecv, (void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c, MPI_Request *q), (b, n, t, k, tag, c, q))
ON(Recv_init, (void *b, int n, MPI_Datatype t, int k, int tag, MPI_Comm c, MPI_Request *q), (b, n, t, k, tag, c, q))
ON(Mprobe, (int k, int tag, MPI_Comm c, MPI_Message *m, MPI_Status *s), (k, tag, c, m, s))
ON(Improbe, (int k, int tag, MPI_Comm c, int *flag, MPI_Message *m, MPI_Status *s), (k, tag, c, flag, m, s))

#endif
