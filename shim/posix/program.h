/* The programs that processes start, and whether this library is in them.
 *
 * Arrives: a call that replaces a program or starts one.
 * Leaves: a record before it, another where it failed; a record from each program in which this library was loaded.
 * Must not know: which calls there are.
 *
 * A start without a record from the new program means that the library is not in it: the program is linked
 * statically, runs with another user's rights, or has an environment without the library. So program files and
 * scripts need not be parsed. */
#ifndef WAYSTAGE_POSIX_PROGRAM_H
#define WAYSTAGE_POSIX_PROGRAM_H

#include "ring.h"

/* Process `process` starts the program `path`, named as in the call, at `began`; errno stays as it is. */
void program_starts(uint32_t process, const char *path, uint64_t began);
/* The start failed. */
void program_failed(uint32_t process);
/* This library was loaded in the program. */
void program_loaded(void);
/* The program uses `what`, whose changes cannot be observed. */
void program_unobservable(const char *what);

#endif
