/* The profiler's life in a process: begun after MPI_Init, ended before MPI_Finalize or when the process dies. */
#ifndef WAYSTAGE_PROFILE_H
#define WAYSTAGE_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

enum route { ROUTE_NONE, ROUTE_PML, ROUTE_UCX, ROUTE_PMPI };

/* How messages are seen; ROUTE_NONE before MPI_Init, after MPI_Finalize, and where nothing can be recorded. */
extern enum route profile_route;

/* Whether `peer` is this rank, and what is received is counted. */
bool profile_receives_own(uint32_t peer);

void profile_begin(void);

/* Gather every rank's part into one file. Collective. */
void profile_end(void);

/* Leave this rank's part, as far as it got. Safe within a signal handler; does nothing the second time. */
void profile_abandon(void);

#endif
