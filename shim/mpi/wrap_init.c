/* MPI_Init, MPI_Finalize, and the calls by which a program ends itself. */
#define _GNU_SOURCE
#include "comms.h"
#include "requests.h"
#include "wrap.h"

#define AROUND(symbol, params, args, before, after)                                                                    \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        before;                                                                                                        \
        int result = next args;                                                                                        \
        after;                                                                                                         \
        return result;                                                                                                 \
    }

#define BEGIN                                                                                                          \
    if (result == MPI_SUCCESS)                                                                                         \
    profile_begin()

AROUND(MPI_Init, (int *argc, char ***argv), (argc, argv), , BEGIN)
AROUND(PMPI_Init, (int *argc, char ***argv), (argc, argv), , BEGIN)
AROUND(MPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given), , BEGIN)
AROUND(PMPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given), , BEGIN)

AROUND(MPI_Finalize, (void), (), profile_end(), )
AROUND(PMPI_Finalize, (void), (), profile_end(), )

AROUND(MPI_Abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )
AROUND(PMPI_Abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )

#ifdef OPEN_MPI
/* What Open MPI itself calls after an error that the program does not handle. */
int ompi_mpi_abort(MPI_Comm comm, int code);
AROUND(ompi_mpi_abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )
#endif

/* Handles that the library may reuse for another object. */
#define GONE(symbol, type, forget)                                                                                     \
    AROUND(symbol, (type * handle), (handle), if (profile_route != ROUTE_NONE) forget(*handle), )

/* A receive without a wait: its address may be reused by another. */
#define request_gone(request) request_forget((uintptr_t)(request))

GONE(MPI_Request_free, MPI_Request, request_gone)
GONE(PMPI_Request_free, MPI_Request, request_gone)
GONE(MPI_Comm_free, MPI_Comm, comm_forget)
GONE(PMPI_Comm_free, MPI_Comm, comm_forget)
GONE(MPI_Comm_disconnect, MPI_Comm, comm_forget)
GONE(PMPI_Comm_disconnect, MPI_Comm, comm_forget)
