/* Programs that processes become, and what this library cannot see of them.
 *
 * Arrives: a call that replaces a program or starts one.
 * Leaves: a record before it, another where it failed; a record of each program in which this library was loaded.
 * Must not know: which calls there are.
 *
 * Where a program was begun and none came, the library is not in it: it is linked statically, runs with the rights of another user, or
 * was given an environment without it. So nothing need be known of the files of programs, and of scripts that name others. */
#ifndef WAYSTAGE_POSIX_PROGRAM_H
#define WAYSTAGE_POSIX_PROGRAM_H

#include "ring.h"

/* Process `process` is to become the program `path`, as it names it, from `began` on; errno stays as it is. */
void program_begins(uint32_t process, const char *path, uint64_t began);
/* It did not. */
void program_failed(uint32_t process);
/* This library is in it, and sees what it does. */
void program_came(void);
/* What it does through `what` cannot be seen. */
void program_blind(const char *what);

#endif
