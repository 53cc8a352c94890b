/* From a call's arguments to an absolute path in a record.
 *
 * Arrives: descriptors and paths as the program gives them, before a call: it may still fail.
 * Leaves: records.
 * Must not know: which calls there are.
 *
 * Relative paths are completed here and not by the agent from /proc/PID/cwd: by the time it reads a record, the process may
 * be elsewhere or gone. The working directory and directories by descriptor are kept between calls, so completing
 * costs a copy of some dozen bytes. Nothing is resolved here: links on the way and `..` are the agent's. */
#ifndef WAYSTAGE_POSIX_TOUCH_H
#define WAYSTAGE_POSIX_TOUCH_H

#include "ring.h"

/* `path` below descriptor `directory`, or below the working directory for AT_FDCWD. errno stays as it is. */
void touch_at(enum ring_kind kind, int directory, const char *path, uint64_t token);
/* What descriptor `fd` is open on. */
void touch_descriptor(enum ring_kind kind, int fd);
/* The descriptor itself where there is no path or an empty one, as utimensat(2) and fchownat(2) have it. */
void touch_either(enum ring_kind kind, int fd, const char *path);
/* What bind(2) makes of a socket's address whose length is `bytes`. */
void touch_address(const void *address, size_t bytes);
/* The names of a directory by descriptor, or of the working directory (AT_FDCWD), are no longer what they were. */
void touch_forget(int directory);
/* The same for every descriptor from `first` to `last`. */
void touch_forget_range(unsigned first, unsigned last);
/* From now on paths of this process mean other files than the agent's: each change is lost, and counted. */
void touch_elsewhere(void);
/* After fork, when another thread may have been in the middle of anything. */
void touch_forked(void);

#endif
