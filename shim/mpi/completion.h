/* Receives of Open MPI that complete: only then are their source and their bytes known. */
#ifndef WAYSTAGE_COMPLETION_H
#define WAYSTAGE_COMPLETION_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "record.h"

/* False where Open MPI completes requests in another way than is known. */
bool completion_start(void);
void completion_stop(void);

/* Count what `status` says was received on `comm`. */
void completion_count(struct recorder *recorder, uintptr_t comm, int kind, const MPI_Status *status);

#endif
