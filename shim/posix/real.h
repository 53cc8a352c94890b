/* How a wrapper calls the function that it replaces: the next one of that name in the search order of the linker.
 *
 * It is looked up once; where there is none, the call fails with ENOSYS. */
#ifndef WAYSTAGE_POSIX_REAL_H
#define WAYSTAGE_POSIX_REAL_H

#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))

/* The function that would have been called; one that fails with ENOSYS where the C library has none. */
void *next_function(_Atomic(void *) *kept, const char *name);

/* Defines `real_SYMBOL`, a pointer to the function `symbol` that follows ours. */
#define REAL(type, symbol, params)                                                                                     \
    static _Atomic(void *) kept_##symbol;                                                                              \
    void *found_##symbol = atomic_load_explicit(&kept_##symbol, memory_order_relaxed);                                 \
    if (__builtin_expect(found_##symbol == NULL, 0))                                                                   \
        found_##symbol = next_function(&kept_##symbol, #symbol);                                                       \
    type(*real_##symbol) params = (type(*) params)found_##symbol

#endif
