/* Files open for writing, and their attributes on close.
 *
 * Arrives: descriptors as they are opened, duplicated and closed.
 * Leaves: a record of each open; with RING_TELL_STAT also of each close, with the result of fstat(2) before it.
 * Must not know: paths.
 *
 * A close is recorded only where this descriptor was the only one on the file, as far as can be known: not after
 * dup(2) or fork(2), not through a stream, which writes its buffer while it closes, and not for files opened for
 * reading too, since a shared mapping that outlives the descriptor needs that. The agent calls stat(2) on such files
 * itself. */
#ifndef WAYSTAGE_POSIX_OPEN_FILES_H
#define WAYSTAGE_POSIX_OPEN_FILES_H

#include "ring.h"

enum access {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_WRITE_ONLY,
};

/* `path` is about to be opened; a token for open_file_add. */
uint64_t open_file_record(int directory, const char *path, enum access how);
/* `fd` was opened, with the token of open_file_record; 0 where its close is not recorded. */
void open_file_add(int fd, uint64_t token);
/* `fd` is about to be closed; `tells` where nothing is written any more. */
void open_file_closing(int fd, bool tells);
void open_files_closing(unsigned first, unsigned last);
/* `copy` is a duplicate of `fd`. */
void open_file_duplicated(int fd, int copy);
/* The file of `fd` can be written after its close. */
void open_file_shared(int fd);
/* Before a fork, after which each open file has two descriptors. */
void open_files_before_fork(void);
/* In the child, whose tokens must differ from the parent's. */
void open_files_after_fork(void);

#endif
