/* What was opened for writing, and what closing tells of it.
 *
 * Arrives: descriptors as they are opened, copied and closed.
 * Leaves: records of openings; with RING_TELL_STAT also of closings, with what fstat says before.
 * Must not know: paths.
 *
 * A closing tells only where this descriptor alone was open on the file, for all that can be known: not after it was
 * duplicated, nor after a fork, nor through a stream whose buffer is written while it closes, nor opened for reading too,
 * as a shared mapping that outlives it must be. The agent looks at such files itself. */
#ifndef WAYSTAGE_POSIX_OPENED_H
#define WAYSTAGE_POSIX_OPENED_H

#include "ring.h"

enum opening {
    OPENING_READS,
    OPENING_WRITES,
    OPENING_ONLY_WRITES,
};

/* `path` is about to be opened; a token for `opened`. */
uint64_t opening(int directory, const char *path, enum opening how);
/* `fd` was opened, with the token of `opening`; 0 where its closing is not to be told. */
void opened(int fd, uint64_t token);
/* `fd` is about to be closed; `tells` says that nothing is written any more. */
void closing(int fd, bool tells);
void closing_range(unsigned first, unsigned last);
/* `copy` is another descriptor of what `fd` is of. */
void duplicated(int fd, int copy);
/* What `fd` is open on can be written beyond its closing. */
void opened_shared(int fd);
/* Before a fork: what is open is open twice. */
void opened_forking(void);
/* In the child: openings get other tokens than in the parent. */
void opened_forked(void);

#endif
