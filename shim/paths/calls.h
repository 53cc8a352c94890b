/* What a call of a collective is, and whether it was declared before. */
#ifndef WAYSTAGE_PATHS_CALLS_H
#define WAYSTAGE_PATHS_CALLS_H

#include <mpi.h>
#include <stddef.h>

struct call {
    const char *primitive;
    const char *algorithm;
    size_t bytes;
    int root; /* -1 without one */
};

/* Called by every rank of `comm` before its first byte: declares the call where it is new, and waits for its paths. */
void call_begins(MPI_Comm comm, const struct call *call);

/* Called after MPI_Init. */
void calls_start(void);

#endif
