/* See offload.h. */
#define _GNU_SOURCE
#include "offload.h"

#include <stdio.h>

#include "comms.h"
#include "profile.h"

static uint64_t calls;
static const char *first;

void offload_check(struct recorder *recorder, MPI_Comm comm, const char *name, bool empty, uint64_t before)
{
    if (profile_route != ROUTE_PML || empty || recorder->activity != before)
        return;
    const struct comm_map *map = comm_map(recorder, comm);
    /* Between two groups some ranks have nothing to do. */
    if (map == NULL || map->size < 2 || map->inter)
        return;
    __atomic_store_n(&first, name, __ATOMIC_RELAXED);
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

bool offload_describe(char *text, size_t room)
{
    if (calls == 0)
        return false;
    snprintf(text, room, "%llu collective calls (%s among them) sent no messages: a component moves their data past "
                         "the point-to-point layer, so they are missing",
             (unsigned long long)calls, first);
    return true;
}
