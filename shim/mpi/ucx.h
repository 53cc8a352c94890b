/* Messages of MPICH 4 and 5, those beneath collectives too, where they enter UCX.
 *
 * MPICH hands UCX a message with the endpoint that it goes to and with bits by which it is matched. The profiler's
 * library comes before UCX in the order in which symbols are looked up, so MPICH calls it in UCX's place. Messages
 * within a host go through shared memory of MPICH's own, and are seen only where MPIR_CVAR_NOLOCAL sends them through
 * UCX too.
 */
#ifndef WAYSTAGE_UCX_H
#define WAYSTAGE_UCX_H

#include <stdbool.h>
#include <stddef.h>

/* After MPI_Init: find out whom endpoints lead to. Collective over MPI_COMM_WORLD, and so apart from what may fail. */
void ucx_meet(int rank, int ranks);

/* False where no message of MPICH goes through UCX, or in another form than is known. */
bool ucx_start(void);

/* Whether all that is received comes through UCX too. */
bool ucx_sees_receives(void);

/* Sentences about what is not seen: the next from *state on, which begins at 0, or NULL. */
const char *ucx_describe(int *state);

/* Before MPI_Finalize. */
void ucx_stop(void);

#endif
