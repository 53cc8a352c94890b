/* What the 64 bits tell by which MPICH lets UCX match messages: the communicator, and with the calls that threads are
 * in, the kind.
 *
 * 16 bits of context, 16 of the sender's rank in the communicator, 32 of the message's tag
 * (src/mpid/ch4/netmod/ucx/ucx_types.h of MPICH 4.0 to 5.0). The context's lowest bit tells collectives' messages
 * from the others, the next two are of parts of a communicator (the ranks of one host, and one rank of each host),
 * the next of an inter-communicator's own side (src/include/mpir_contextid.h).
 */
#ifndef WAYSTAGE_UCX_MATCH_H
#define WAYSTAGE_UCX_MATCH_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "comms.h"
#include "record.h"

#define MATCH_CONTEXT(bits) ((uint32_t)((bits) >> 48))
#define MATCH_SOURCE(bits) ((uint32_t)((bits) >> 32) & 0xffff)
#define MATCH_TAG(bits) ((uint32_t)(bits))
#define MATCH_COLLECTIVE(bits) ((MATCH_CONTEXT(bits) & 1) != 0)

/* A message is sent: its kind, or 0 where the program's own call has counted it. */
int match_sent(struct recorder *recorder, uint64_t bits);

/* Whether it is known to be a non-blocking collective's. */
bool match_is_nonblocking(uint64_t bits);

/* A receive is asked for. What is learned then tells the kind of what comes, perhaps in another call. */
void match_posted(struct recorder *recorder, uint64_t bits);

/* Count what was received, now or when it is known who sent it. */
void match_count(struct recorder *recorder, uint64_t bits, uint64_t bytes);

/* A call that has a communicator ends: what came on it, or on one that was made, can be counted now. */
void match_settle(struct recorder *recorder);

/* On which host each rank of MPI_COMM_WORLD is, by a number, and this one; kept, NULL where it is not known. */
void match_hosts(uint32_t *hosts, uint32_t own);

/* Messages with the context of `bits` are those of `map`; `own_side` is of an inter-communicator, or NULL. */
void match_learn(const struct comm_map *map, const struct comm_map *own_side, uint64_t bits);

/* `map` is no longer to be used. */
void match_forget(const struct comm_map *map);

/* Received, and not known from whom. */
extern struct match_unresolved {
    uint64_t messages, bytes;
} match_unresolved;

#endif
