/* Records with absolute paths, from the arguments of calls.
 *
 * Arrives: descriptors and paths as the program gives them, before a call that may still fail.
 * Leaves: records.
 * Must not know: which calls there are.
 *
 * Relative paths are completed here, and not by the agent from /proc/PID/cwd: when it reads a record, the process may
 * have changed its directory or ended. The paths of the working directory and of directories by descriptor are
 * cached, so completing a path costs a copy of some dozen bytes. The agent resolves links and `..`. */
#ifndef WAYSTAGE_POSIX_PATH_RECORD_H
#define WAYSTAGE_POSIX_PATH_RECORD_H

#include "ring.h"

/* `path` below descriptor `directory`, or below the working directory for AT_FDCWD. errno stays as it is. */
void record_path(enum ring_kind kind, int directory, const char *path, uint64_t token);
/* The file that descriptor `fd` is open on. */
void record_descriptor(enum ring_kind kind, int fd);
/* The descriptor itself where the path is absent or empty, as in utimensat(2) and fchownat(2). */
void record_path_or_descriptor(enum ring_kind kind, int fd, const char *path);
/* The socket that bind(2) creates for an address of `bytes` bytes. */
void record_address(const void *address, size_t bytes);
/* Drop the cached path of a descriptor, or of the working directory (AT_FDCWD). */
void directory_cache_drop(int directory);
/* The same for every descriptor from `first` to `last`. */
void directory_cache_drop_range(unsigned first, unsigned last);
/* The root directory changed, so paths no longer mean the agent's files: from now on changes are only counted. */
void record_root_changed(void);
/* In the child of a fork, before which another thread may have been writing to the cache. */
void directory_cache_forked(void);

#endif
