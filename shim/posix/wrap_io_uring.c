/* io_uring, whose changes bypass the C library: its use is recorded, the changes are not. */
#define _GNU_SOURCE
#include <stddef.h>

#include "program.h"
#include "real.h"

/* Of liburing, whose own calls need no C library. */
#define URING(symbol, params, types, args)                                                                             \
    EXPORT int symbol params;                                                                                          \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        REAL(int, symbol, types);                                                                                      \
        int result = real_##symbol args;                                                                               \
        if (result >= 0)                                                                                               \
            program_unobservable("io_uring");                                                                          \
        return result;                                                                                                 \
    }

URING(io_uring_queue_init, (unsigned entries, void *queue, unsigned flags), (unsigned, void *, unsigned),
    (entries, queue, flags))
URING(io_uring_queue_init_params, (unsigned entries, void *queue, void *params), (unsigned, void *, void *),
    (entries, queue, params))
URING(io_uring_queue_init_mem, (unsigned entries, void *queue, void *params, void *memory, size_t bytes),
    (unsigned, void *, void *, void *, size_t), (entries, queue, params, memory, bytes))
URING(io_uring_queue_init_try_nosqarr, (unsigned entries, void *queue, void *params), (unsigned, void *, void *),
    (entries, queue, params))
URING(io_uring_setup, (unsigned entries, void *params), (unsigned, void *), (entries, params))
