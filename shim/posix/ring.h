/* The writers' side of the segment.
 *
 * Arrives: what a call may change.
 * Leaves: a record in shared memory, or a count of lost ones. Never an error; the caller's errno stays as it is.
 * Must not know: which calls there are. */
#ifndef WAYSTAGE_POSIX_RING_H
#define WAYSTAGE_POSIX_RING_H

#include <stdbool.h>
#include <stddef.h>

#include "waystage_ring.h"

extern struct ring_header *segment; /* NULL: nothing is recorded. */

/* A record begun: at most RING_LONGEST bytes from `record`, in a ring that is ours until ring_end. */
struct ring_claim {
    struct ring_control *ring;
    struct ring_record *record;
    uint64_t head; /* Including the bytes skipped up to the ring's end. */
};

/* Enrol a process of this program: it may still run when the program ends. */
void ring_enroll(uint32_t process);
/* Attach to the segment that the environment names, if it does. */
void ring_attach(void);
/* In the child of a fork, whose only thread has another id. */
void ring_forked(void);

/* False, and counted, where no ring has room within the bound. */
bool ring_begin(struct ring_claim *claim);
/* Make the record of `path_bytes` and `body_bytes` behind its header count; with 0 of both, give it up. */
void ring_end(const struct ring_claim *claim, enum ring_kind kind, uint64_t token, size_t path_bytes, size_t body_bytes);

void ring_unplaced(void);

/* CLOCK_MONOTONIC in ns; 0 where nothing is recorded. */
uint64_t ring_now(void);

static inline bool ring_stats(void)
{
    return segment != NULL && (segment->flags & RING_TELL_STAT) != 0;
}

#endif
