/* Collectives that send no messages, because a component moves their data in another way: through shared memory, or by
 * the network's own hardware.
 */
#ifndef WAYSTAGE_BYPASS_H
#define WAYSTAGE_BYPASS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include "record.h"

/* After a blocking collective of `bytes` on `comm`, before which the thread's activity was `before`. */
void bypass_check(struct recorder *recorder, MPI_Comm comm, const char *name, bool empty, uint64_t before);

/* A sentence about what was seen, or false. */
bool bypass_describe(char *text, size_t room);

#endif
