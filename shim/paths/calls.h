/* What a call of a collective is, and whether it was declared before. */
#ifndef WAYSTAGE_PATHS_CALLS_H
#define WAYSTAGE_PATHS_CALLS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The algorithm of a call that is learned from its messages alone. */
extern const char call_observed[];

struct call {
    const char *primitive;
    const char *algorithm;
    size_t bytes;
    int root; /* -1 without one */
};

/* A call in progress, between its beginning and its end. */
struct noting {
    struct call call;
    const struct members *members; /* NULL unless its messages are noted */
    uint64_t key;
    bool outermost;
};

/* The program calls a collective, and the call returns. The messages of the first call are learned where the library
 * does not say by which algorithm it goes; the second call waits for paths for them. `call->algorithm` is
 * call_observed.
 */
void call_enters(MPI_Comm comm, const struct call *call, struct noting *noting);
void call_leaves(struct noting *noting);

/* The MPI library has chosen an algorithm, on every rank of `comm` before its first byte: declares the call where it is
 * new, and waits for its paths. Then the algorithm has ended: whom the first call sent to is reported.
 */
void call_begins(MPI_Comm comm, const struct call *call, struct noting *noting);
void call_ends(struct noting *noting);

/* Of a communicator whose calls are declared: python/waystage/mpi_steps.py. */
#define CALLS_MOST_RANKS 4096

/* Ask the controller for an order of the communicator's ranks: its rank at each position. False where it gives none.
 * One rank asks, and waits for as long as `limit_ms`. */
bool call_order(MPI_Comm comm, const char *primitive, size_t bytes, int limit_ms, int *ranks);

/* What this thread calls from now on, or until now, is not the program's: it is not declared. */
void call_aside(bool aside);

/* Called after MPI_Init. */
void calls_start(void);

#endif
