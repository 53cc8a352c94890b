/* Whom the calling thread sends to within one call of a collective, for the library that declares collectives
 * (shim/paths), which finds the two functions by name.
 *
 * Arrives: the beginning and the end of the call; each message that leaves the MPI library meanwhile.
 * Leaves: receivers as ranks of MPI_COMM_WORLD, in the order of their first message, with the bytes of all to each.
 * Must not know: algorithms, the agent.
 *
 * Noted are messages of blocking collectives, and of those that a component carries out on a communicator which it has
 * made for itself (coll/han). Point-to-point messages and the program's non-blocking collectives, which may
 * progress meanwhile, are not. A call that makes communicators is not told: its messages are not those of the next.
 */
#ifndef WAYSTAGE_WATCH_H
#define WAYSTAGE_WATCH_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begin to note in `pairs`, receiver and bytes by turns, of `room` receivers. False where messages are not seen. */
__attribute__((visibility("default"))) bool waystage_watch_begin(uint64_t *pairs, int room);

/* How many receivers were noted, or -1 where the call's messages are not all known. */
__attribute__((visibility("default"))) int waystage_watch_end(void);

/* Messages are no longer seen. */
void watch_stop(void);

struct watch {
    uint64_t *pairs; /* NULL but between begin and end */
    int room, count;
    bool unclear;
};

extern __thread struct watch watch __attribute__((tls_model("initial-exec")));

/* The profiler counts nothing and leaves no file: WAYSTAGE_PROFILE=watch. */
extern bool watch_only;

static inline bool watch_on(void)
{
    return __builtin_expect(watch.pairs != NULL, 0);
}

/* A message of the call to a rank of MPI_COMM_WORLD, or PEER_OUTSIDE. */
void watch_note(uint32_t peer, uint64_t bytes);

/* A communicator appears within a collective call of this thread: it is the component's. */
void watch_made(MPI_Comm comm);
bool watch_is_internal(MPI_Comm comm);
void watch_gone(MPI_Comm comm);

#endif
