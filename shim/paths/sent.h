/* Whom this rank really sends to in a call, as the profiler's library sees it (shim/mpi/watch.h) where it is loaded. */
#ifndef WAYSTAGE_PATHS_SENT_H
#define WAYSTAGE_PATHS_SENT_H

#include "calls.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether it can be seen; called after MPI_Init. */
bool sent_start(void);

/* From now on in this thread; what was begun before is dropped. */
bool sent_begin(void);

/* Give the agent what was sent since, as ranks of the communicator, of which this one is `mine`. `ranks` are its
 * members' ranks of the world. False, and nothing is given, where it is not all known.
 */
bool sent_end(const struct call *call, const char *key, const int *ranks, int count, int mine);

/* Drop it. */
void sent_drop(void);

#endif
