/* Whom an endpoint of UCX leads to, by rank in MPI_COMM_WORLD.
 *
 * Every rank tells every other how its workers' addresses begin, where UCX puts a number that no other worker has; an
 * endpoint is made with the address of the worker that it leads to. Knows nothing of messages.
 */
#ifndef WAYSTAGE_UCX_PEERS_H
#define WAYSTAGE_UCX_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* This process has a worker with this address. */
void peers_own(const void *address, size_t length);

/* An endpoint was made that leads to this address. */
void peers_made(const void *endpoint, const void *address);

/* Exchange addresses. Collective over MPI_COMM_WORLD; false on all ranks where it cannot be done. */
bool peers_meet(int ranks);

/* The rank in MPI_COMM_WORLD, or PEER_OUTSIDE. */
uint32_t peers_find(const void *endpoint);

#endif
