/* Another order of a communicator's ranks for its large collectives. */
#ifndef WAYSTAGE_PATHS_ORDER_H
#define WAYSTAGE_PATHS_ORDER_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

enum ordered { ORDER_ALLREDUCE, ORDER_BCAST, ORDER_ALLGATHER, ORDERED };

/* The same processes in another order. */
struct order {
    int calls, count;
    bool made;
    MPI_Comm comm;
    int *position;         /* in `comm`, of each rank of the given communicator */
    int *ranks;            /* of the given communicator, of each rank of `comm` */
    int *counts, *places;  /* arguments of MPI_Allgatherv: order_blocks */
};

/* Called after MPI_Init, once calls are declared. */
void order_start(void);

/* Every rank of `comm` calls a collective with these bytes, on which all agree; of an allgather, those of a block. The
 * order to carry it out in, or NULL for the communicator's. `order_leaves` ends it, in either case, and returns the
 * call's result. */
struct order *order_enters(MPI_Comm comm, enum ordered primitive, size_t bytes);
int order_leaves(const struct order *order, MPI_Comm comm, int result);

/* Whether the result of a reduction does not depend on the order of ranks, or the user does not mind. */
bool order_free(MPI_Datatype type, MPI_Op op);

/* Makes each rank's block of `received` elements arrive where it belongs in the given communicator's order. */
void order_blocks(struct order *order, int received);

/* A rank of the given communicator in `comm`; one that there is not stays what it is, an error of the program. */
static inline int order_rank(const struct order *order, int rank)
{
    return rank >= 0 && rank < order->count ? order->position[rank] : rank;
}

#endif
