/* See ucx_peers.h. */
#define _GNU_SOURCE
#include "ucx_peers.h"

#include <mpi.h>

#ifndef OPEN_MPI

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "comms.h"

/* Of a worker's address, as many bytes as every address has: a byte of form, then the worker's number of 8 bytes
 * (ucp_address_pack, src/ucp/wireup/address.c of UCX 1.10 to 1.18). That no two are equal is checked.
 */
#define NAME_BYTES 16
#define MOST_WORKERS 64
#define FIRST_PLACES 256

struct name {
    unsigned char bytes[NAME_BYTES];
    uint32_t rank;
};

struct endpoint {
    const void *at; /* NULL: an empty place */
    struct name leads_to;
};

struct places {
    size_t mask, used;
    struct endpoint endpoints[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct name own[MOST_WORKERS];
static int workers;
static struct name *names; /* of all ranks, sorted */
static size_t names_count;
static struct places *places; /* read without the lock; an older one is never given back */
static bool short_of_memory;

static int by_bytes(const void *left, const void *right)
{
    return memcmp(((const struct name *)left)->bytes, ((const struct name *)right)->bytes, NAME_BYTES);
}

static uint32_t rank_of(const struct name *name)
{
    const struct name *found =
        names == NULL ? NULL : bsearch(name, names, names_count, sizeof *names, by_bytes);
    return found == NULL ? PEER_OUTSIDE : found->rank;
}

void peers_own(const void *address, size_t length)
{
    struct name name = {.rank = 0};
    if (length < NAME_BYTES)
        return;
    memcpy(name.bytes, address, NAME_BYTES);
    pthread_mutex_lock(&lock);
    int known = 0;
    while (known < workers && by_bytes(&own[known], &name) != 0)
        known++;
    if (known == workers && workers < MOST_WORKERS)
        own[workers++] = name;
    pthread_mutex_unlock(&lock);
}

static struct endpoint *place_of(struct places *in, const void *endpoint)
{
    size_t at = (size_t)(((uint64_t)(uintptr_t)endpoint * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
    for (;; at++) {
        struct endpoint *place = &in->endpoints[at & in->mask];
        const void *there = __atomic_load_n(&place->at, __ATOMIC_ACQUIRE);
        if (there == endpoint || there == NULL)
            return place;
    }
}

/* Half full at most. */
static struct places *with_room(void)
{
    struct places *old = places;
    if (old != NULL && 2 * (old->used + 1) <= old->mask)
        return old;
    size_t count = old == NULL ? FIRST_PLACES : 2 * (old->mask + 1);
    struct places *larger = calloc(1, sizeof *larger + count * sizeof larger->endpoints[0]);
    if (larger == NULL)
        return NULL;
    larger->mask = count - 1;
    for (size_t i = 0; old != NULL && i <= old->mask; i++)
        if (old->endpoints[i].at != NULL) {
            *place_of(larger, old->endpoints[i].at) = old->endpoints[i];
            larger->used++;
        }
    __atomic_store_n(&places, larger, __ATOMIC_RELEASE);
    return larger;
}

void peers_made(const void *endpoint, const void *address)
{
    struct name name = {.rank = 0};
    memcpy(name.bytes, address, NAME_BYTES);
    pthread_mutex_lock(&lock);
    struct places *in = with_room();
    if (in == NULL) {
        short_of_memory = true;
    } else {
        struct endpoint *place = place_of(in, endpoint);
        name.rank = rank_of(&name);
        in->used += place->at == NULL;
        place->leads_to = name;
        __atomic_store_n(&place->at, endpoint, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}

uint32_t peers_find(const void *endpoint)
{
    struct places *in = __atomic_load_n(&places, __ATOMIC_ACQUIRE);
    if (in == NULL)
        return PEER_OUTSIDE;
    const struct endpoint *place = place_of(in, endpoint);
    return place->at == NULL ? PEER_OUTSIDE : place->leads_to.rank;
}

/* What all ranks sent, `each` names of every one, into `names`. False where two ranks' are equal. */
static bool take_names(const unsigned char *all, int ranks, int each)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < each; i++) {
            struct name *name = &names[names_count];
            memcpy(name->bytes, all + ((size_t)rank * (size_t)each + (size_t)i) * NAME_BYTES, NAME_BYTES);
            name->rank = (uint32_t)rank;
            names_count++;
        }
    qsort(names, names_count, sizeof *names, by_bytes);
    for (size_t i = 1; i < names_count; i++)
        if (by_bytes(&names[i - 1], &names[i]) == 0 && names[i - 1].rank != names[i].rank)
            return false;
    for (size_t i = 0; places != NULL && i <= places->mask; i++)
        if (places->endpoints[i].at != NULL)
            places->endpoints[i].leads_to.rank = rank_of(&places->endpoints[i].leads_to);
    return true;
}

bool peers_meet(int ranks)
{
    uint64_t most[2] = {(uint64_t)workers, workers == 0 || workers == MOST_WORKERS || short_of_memory}, agreed[2];
    if (mpi.Allreduce(most, agreed, 2, mpi.uint64, mpi.max, mpi.world) != MPI_SUCCESS || agreed[1] != 0)
        return false;
    int each = (int)agreed[0];
    size_t count = (size_t)ranks * (size_t)each;
    unsigned char mine[MOST_WORKERS * NAME_BYTES];
    unsigned char *all = malloc(count * NAME_BYTES);
    names = malloc(count * sizeof *names);
    /* A rank without memory must not keep the others waiting. */
    uint64_t unable = all == NULL || names == NULL, any = 1;
    mpi.Allreduce(&unable, &any, 1, mpi.uint64, mpi.max, mpi.world);
    bool met = false;
    if (any == 0) {
        /* A rank with fewer workers repeats its first. */
        for (int i = 0; i < each; i++)
            memcpy(mine + i * NAME_BYTES, own[i < workers ? i : 0].bytes, NAME_BYTES);
        met = mpi.Allgather(mine, each * NAME_BYTES, mpi.byte, all, each * NAME_BYTES, mpi.byte, mpi.world) ==
              MPI_SUCCESS;
        pthread_mutex_lock(&lock);
        met = met && take_names(all, ranks, each);
        pthread_mutex_unlock(&lock);
    }
    free(all);
    return met;
}

#endif
