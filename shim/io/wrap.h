/* What the files of wrappers share. */
#ifndef WAYSTAGE_IO_WRAP_H
#define WAYSTAGE_IO_WRAP_H

#include "file.h"
#include "ops.h"

#define WS_EXPORT __attribute__((visibility("default")))
#define WS_SAME_AS(name) __attribute__((visibility("default"), alias(name)))

/* Finds the MPI library's own functions, once. */
void ws_wrap_find(void);

#endif
