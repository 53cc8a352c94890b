/* How a function of MPI is put in front of the one that follows it.
 *
 * Each is defined as MPI_X and as PMPI_X: C programs call the first, the Fortran bindings of Open MPI and MPICH the
 * second. A second tool may come between, so both may run for one call; what is counted is counted by the outer one.
 */
#ifndef WAYSTAGE_WRAP_H
#define WAYSTAGE_WRAP_H

#include <mpi.h>

#include "api.h"
#include "comms.h"
#include "profile.h"
#include "record.h"
#include "watch.h"

#define EXPORT __attribute__((visibility("default")))

#define NEXT_OR_FAIL(symbol, params)                                                                                   \
    static int(*next) params;                                                                                          \
    if (__builtin_expect(next == NULL, 0) && (next = (int(*) params)api_next(#symbol)) == NULL)                         \
        return MPI_ERR_OTHER

static inline struct recorder *wrap_recorder(void)
{
    return profile_route != ROUTE_NONE ? recorder_get() : NULL;
}

/* Whose ranks the senders of what comes count in: wanted where receives are seen beneath MPI. */
static inline uintptr_t wrap_enter(struct recorder *recorder, MPI_Comm comm)
{
    uintptr_t before = recorder->scope;
    recorder->scope = 0;
    if (comm == mpi.comm_null)
        return before;
    recorder->scope = comm_key(comm);
    if (profile_route == ROUTE_UCX)
        comm_map(recorder, comm);
    return before;
}

static inline void wrap_leave(struct recorder *recorder, uintptr_t before)
{
    if (comm_hooks.left != NULL)
        comm_hooks.left(recorder);
    recorder->scope = before;
}

/* Messages that the library sends within the call, on `comm` or one that it makes of it, are of this kind. */
#define HINTED_SYMBOL(symbol, kind, comm, after, params, args)                                                         \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        struct recorder *recorder = wrap_recorder();                                                                   \
        if (recorder == NULL)                                                                                          \
            return next args;                                                                                          \
        int hint = recorder->hint;                                                                                     \
        uintptr_t scope = wrap_enter(recorder, comm);                                                                  \
        recorder->hint = (kind);                                                                                       \
        int result = next args;                                                                                        \
        if (result == MPI_SUCCESS) {                                                                                   \
            after;                                                                                                     \
        }                                                                                                              \
        recorder->hint = hint;                                                                                         \
        wrap_leave(recorder, scope);                                                                                   \
        return result;                                                                                                 \
    }
#define HINTED(name, kind, comm, after, params, args)                                                                  \
    HINTED_SYMBOL(MPI_##name, kind, comm, after, params, args)                                                         \
    HINTED_SYMBOL(PMPI_##name, kind, comm, after, params, args)                                                        \

/* Do `before` with `recorder`, in the outer one only. */
#define COUNTED_SYMBOL(symbol, params, args, before)                                                                   \
    EXPORT int symbol params                                                                                           \
    {                                                                                                                  \
        NEXT_OR_FAIL(symbol, params);                                                                                  \
        struct recorder *recorder = watch_only ? NULL : wrap_recorder();                                               \
        if (recorder == NULL)                                                                                          \
            return next args;                                                                                          \
        if (recorder->calls++ == 0) {                                                                                  \
            before;                                                                                                    \
        }                                                                                                              \
        int result = next args;                                                                                        \
        recorder->calls--;                                                                                             \
        return result;                                                                                                 \
    }
#define COUNTED(name, params, args, before)                                                                            \
    COUNTED_SYMBOL(MPI_##name, params, args, before)                                                                   \
    COUNTED_SYMBOL(PMPI_##name, params, args, before)

#endif
