/* What the files of wrappers share. */
#ifndef WAYSTAGE_POSIX_WRAP_H
#define WAYSTAGE_POSIX_WRAP_H

#include "open_files.h"

/* How open(2) with these flags may change or create a file that has a name. */
enum access access_of_flags(int flags);

#endif
