/* See watch.h. */
#define _GNU_SOURCE
#include "watch.h"

#include "comms.h"
#include "profile.h"

#define MOST_INTERNAL 256 /* communicators of components at a time; where there are more, calls are not told */

__thread struct watch watch __attribute__((tls_model("initial-exec")));
bool watch_only;

static uintptr_t internal[MOST_INTERNAL];
static bool too_many, stopped;

bool waystage_watch_begin(uint64_t *pairs, int room)
{
    if (stopped || (profile_route != ROUTE_PML && profile_route != ROUTE_UCX))
        return false;
    watch = (struct watch){.pairs = pairs, .room = room};
    return true;
}

void watch_stop(void)
{
    stopped = true;
}

int waystage_watch_end(void)
{
    struct watch ended = watch;
    watch = (struct watch){0};
    return ended.pairs == NULL || ended.unclear ? -1 : ended.count;
}

void watch_note(uint32_t peer, uint64_t bytes)
{
    if (peer == PEER_OUTSIDE) {
        watch.unclear = true;
        return;
    }
    /* The newest first: segments of a message follow each other. */
    for (int i = watch.count - 1; i >= 0; i--) {
        if (watch.pairs[2 * i] == peer) {
            watch.pairs[2 * i + 1] += bytes;
            return;
        }
    }
    if (watch.count == watch.room) {
        watch.unclear = true;
        return;
    }
    watch.pairs[2 * watch.count] = peer;
    watch.pairs[2 * watch.count + 1] = bytes;
    watch.count++;
}

/* Places are taken and given back by exchanges of one word: threads make and free communicators at once. */
static bool replace(uintptr_t from, uintptr_t to)
{
    for (int i = 0; i < MOST_INTERNAL; i++) {
        uintptr_t held = from;
        if (__atomic_load_n(&internal[i], __ATOMIC_RELAXED) == from &&
            __atomic_compare_exchange_n(&internal[i], &held, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

void watch_made(MPI_Comm comm)
{
    watch.unclear = true;
    if (!replace(0, comm_key(comm)))
        __atomic_store_n(&too_many, true, __ATOMIC_RELAXED);
}

bool watch_is_internal(MPI_Comm comm)
{
    for (int i = 0; i < MOST_INTERNAL; i++)
        if (__atomic_load_n(&internal[i], __ATOMIC_ACQUIRE) == comm_key(comm))
            return true;
    if (__atomic_load_n(&too_many, __ATOMIC_RELAXED))
        watch.unclear = true;
    return false;
}

void watch_gone(MPI_Comm comm)
{
    replace(comm_key(comm), 0);
}
