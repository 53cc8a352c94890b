/* MPI_Init, MPI_Finalize, and the ways in which a program ends itself. */
#define _GNU_SOURCE
#include "comms.h"
#include "requests.h"
#include "wrap.h"

#define LIFE(symbol, params, args, before, after)                                                                      \
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

LIFE(MPI_Init, (int *argc, char ***argv), (argc, argv), , BEGIN)
LIFE(PMPI_Init, (int *argc, char ***argv), (argc, argv), , BEGIN)
LIFE(MPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given), , BEGIN)
LIFE(PMPI_Init_thread, (int *argc, char ***argv, int wanted, int *given), (argc, argv, wanted, given), , BEGIN)

LIFE(MPI_Finalize, (void), (), profile_end(), )
LIFE(PMPI_Finalize, (void), (), profile_end(), )

LIFE(MPI_Abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )
LIFE(PMPI_Abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )

#ifdef OPEN_MPI
/* What Open MPI itself calls after an error that the program does not handle. */
int ompi_mpi_abort(MPI_Comm comm, int code);
LIFE(ompi_mpi_abort, (MPI_Comm comm, int code), (comm, code), profile_abandon(), )
#endif

/* Handles that may come back as those of something else. */
#define GONE(symbol, type, forget)                                                                                     \
    LIFE(symbol, (type * handle), (handle), if (profile_route != ROUTE_NONE) forget(*handle), )

/* A receive that nobody waits for: its address may come back as that of another. */
#define request_gone(request) request_forget((uintptr_t)(request))

GONE(MPI_Request_free, MPI_Request, request_gone)
GONE(PMPI_Request_free, MPI_Request, request_gone)
GONE(MPI_Comm_free, MPI_Comm, comm_forget)
GONE(PMPI_Comm_free, MPI_Comm, comm_forget)
GONE(MPI_Comm_disconnect, MPI_Comm, comm_forget)
GONE(PMPI_Comm_disconnect, MPI_Comm, comm_forget)
