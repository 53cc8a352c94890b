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

/* Called after MPI_Init. */
void calls_start(void);

#endif
