/* Which kind a message is of: by its tag, by the call it is sent in, and by which library sends it. */
#ifndef WAYSTAGE_CLASSIFY_H
#define WAYSTAGE_CLASSIFY_H

#include <mpi.h>

#include "record.h"

/* In recorder.hint beside a kind: the call begins a non-blocking collective, whose later messages have its tag. */
#define HINT_LEARN 0x100

/* Blocking collectives have tags from the first down to the last; those below count up with every non-blocking one. */
#define CLASSIFY_FIRST_TAG (-10)
#define CLASSIFY_LAST_BLOCKING_TAG (-26)

/* `caller` is where the send or receive was called from. */
int classify(struct recorder *recorder, MPI_Comm comm, int tag, const void *caller);

/* Around a call that begins a non-blocking collective of `kind`. */
static inline void classify_begin(struct recorder *recorder, int kind)
{
    recorder->learned = false;
    recorder->hint = kind | HINT_LEARN;
}
void classify_begun(struct recorder *recorder, MPI_Comm comm, int kind);

/* The kind of the oldest one on the communicator that has sent nothing yet, now that it has; or 0. */
int classify_oldest(struct recorder *recorder, uintptr_t comm);

/* Whether this thread has begun one that has sent nothing yet. */
bool classify_waits(const struct recorder *recorder);

/* `comm` is gone, and what was learned of its tags. */
void classify_forget(MPI_Comm comm);

#endif
