/* Offloaded collectives: they send no messages, because a component moves their data through shared memory or by the
 * network's hardware.
 */
#ifndef WAYSTAGE_OFFLOAD_H
#define WAYSTAGE_OFFLOAD_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include "record.h"

/* After a blocking collective of `bytes` on `comm`, before which the thread's activity was `before`. */
void offload_check(struct recorder *recorder, MPI_Comm comm, const char *name, bool empty, uint64_t before);

/* A sentence about what was seen, or false. */
bool offload_describe(char *text, size_t room);

#endif
