/* See sent.h. A line of JSON: MpiSent in python/waystage/flows/mpi_wire.py. */
#define _GNU_SOURCE
#include "sent.h"

#include "agent.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_RECEIVERS 1024 /* of one rank; a rank with more tells nothing, as the root of a linear algorithm */

static bool (*watch_begin)(uint64_t *pairs, int room);
static int (*watch_end)(void);
static __thread uint64_t *pairs;

bool sent_start(void)
{
    watch_begin = (bool (*)(uint64_t *, int))dlsym(RTLD_DEFAULT, "waystage_watch_begin");
    watch_end = (int (*)(void))dlsym(RTLD_DEFAULT, "waystage_watch_end");
    bool can = watch_begin != NULL && watch_end != NULL && sent_begin();
    sent_drop();
    return can;
}

bool sent_begin(void)
{
    sent_drop();
    pairs = malloc(2 * MOST_RECEIVERS * sizeof *pairs);
    if (pairs != NULL && watch_begin(pairs, MOST_RECEIVERS))
        return true;
    sent_drop();
    return false;
}

void sent_drop(void)
{
    if (pairs != NULL)
        watch_end();
    free(pairs);
    pairs = NULL;
}

static int rank_in(const int *ranks, int count, uint64_t of_world)
{
    for (int i = 0; i < count; i++)
        if ((uint64_t)ranks[i] == of_world)
            return i;
    return -1;
}

bool sent_end(const struct call *call, const char *key, const int *ranks, int count, int mine)
{
    int receivers = pairs != NULL ? watch_end() : -1;
    bool known = receivers >= 0;
    size_t room = 512 + 40 * (size_t)(known ? receivers : 0);
    char *line = known ? malloc(room) : NULL;
    known = line != NULL;
    int length = 0, told = 0;
    if (known)
        length = snprintf(line, room,
                          "{\"type\":\"mpi-sent\",\"key\":\"%s\",\"primitive\":\"%s\",\"algorithm\":\"%s\","
                          "\"bytes\":%zu,\"root\":%d,\"size\":%d,\"at\":%d,\"to\":[",
                          key, call->primitive, call->algorithm, call->bytes, call->root, count, mine);
    for (int i = 0; known && i < receivers; i++) {
        int receiver = rank_in(ranks, count, pairs[2 * i]);
        if (receiver == mine)
            continue;
        known = receiver >= 0;
        length += snprintf(line + length, room - (size_t)length, "%s[%d,%" PRIu64 "]", told++ ? "," : "", receiver,
                           pairs[2 * i + 1]);
    }
    if (known) {
        length += snprintf(line + length, room - (size_t)length, "]}");
        agent_send(line, length);
    }
    free(line);
    free(pairs);
    pairs = NULL;
    return known;
}
