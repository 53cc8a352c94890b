/* See ucx_match.h. */
#define _GNU_SOURCE
#include "ucx_match.h"

#ifndef OPEN_MPI

#include <stdlib.h>

#include "classify.h"
#include "kinds.h"
#include "profile.h"

struct match_unresolved match_unresolved;

static uint32_t *host_of;
static uint32_t own_host;

#define CONTEXTS (1 << 16)
#define PART_BITS 0x6
#define WITHIN_HOST_BITS 0x2
#define BETWEEN_HOSTS_BITS 0x4
#define OWN_SIDE_BIT 0x8

/* By context, without its lowest bit. */
static const struct comm_map *maps[CONTEXTS / 2];

/* Received on a communicator whose ranks are not known yet: it is being made, or the program has not used it. */
#define MOST_PENDING 256

struct message {
    uint64_t bits, bytes;
    int kind;
    bool within; /* a call that has a communicator */
};

static __thread struct message pending[MOST_PENDING];
static __thread int pending_count;

/* A word each, so that threads may read and write it without a lock: context without the part, tag, whether of a
 * non-blocking collective, kind. A non-blocking one has its own tag; a blocking one's tag may be another's in the
 * next call.
 */
#define LEARNED 4096
#define NONBLOCKING_BIT 0x100
static uint64_t learned[LEARNED];

static uint64_t learned_word(uint64_t bits)
{
    return ((uint64_t)(MATCH_CONTEXT(bits) & ~(uint32_t)PART_BITS) << 48) | ((uint64_t)MATCH_TAG(bits) << 16);
}

static uint64_t *learned_slot(uint64_t word)
{
    return &learned[(word * UINT64_C(0x9E3779B97F4A7C15)) >> 52];
}

static int learned_kind(uint64_t bits)
{
    uint64_t word = learned_word(bits), known = __atomic_load_n(learned_slot(word), __ATOMIC_RELAXED);
    return known != 0 && (known & ~UINT64_C(0xffff)) == word ? (int)(known & 0xffff) : 0;
}

static void learn_kind(uint64_t bits, int kind)
{
    uint64_t word = learned_word(bits);
    __atomic_store_n(learned_slot(word), word | (uint64_t)kind, __ATOMIC_RELAXED);
}

/* One in progress may continue within any call; only the call that begins it knows its name. */
static int collective_kind(struct recorder *recorder, uint64_t bits)
{
    int known = learned_kind(bits), hint = recorder->hint & 0xff;
    if (recorder->hint & HINT_LEARN) {
        recorder->learned = true;
        learn_kind(bits, hint | NONBLOCKING_BIT);
        return hint;
    }
    if (known & NONBLOCKING_BIT)
        return known & 0xff;
    if (hint != 0 && hint != known)
        learn_kind(bits, hint);
    if (hint != 0 || known != 0)
        return hint != 0 ? hint : known;
    /* Some non-blocking ones begin with a local copy, so that their first message comes after the call. */
    const struct comm_map *map = __atomic_load_n(&maps[MATCH_CONTEXT(bits) / 2], __ATOMIC_ACQUIRE);
    int begun = map != NULL ? classify_oldest(recorder, map->comm) : 0;
    if (begun != 0)
        learn_kind(bits, begun | NONBLOCKING_BIT);
    return begun != 0 ? begun : KIND_COLLECTIVE;
}

int match_sent(struct recorder *recorder, uint64_t bits)
{
    if (MATCH_COLLECTIVE(bits))
        return collective_kind(recorder, bits);
    if (recorder->calls > 0)
        return 0;
    return recorder->hint != 0 ? recorder->hint & 0xff : KIND_P2P;
}

bool match_is_nonblocking(uint64_t bits)
{
    return (learned_kind(bits) & NONBLOCKING_BIT) != 0;
}

void match_posted(struct recorder *recorder, uint64_t bits)
{
    if (MATCH_COLLECTIVE(bits))
        collective_kind(recorder, bits);
    else if (recorder->hint != 0)
        learn_kind(bits, recorder->hint & 0xff);
    else if (learned_kind(bits) != 0)
        __atomic_store_n(learned_slot(learned_word(bits)), 0, __ATOMIC_RELAXED);
}

static int received_kind(const struct recorder *recorder, uint64_t bits)
{
    int known = learned_kind(bits) & 0xff;
    if (known != 0 || !MATCH_COLLECTIVE(bits))
        return known != 0 ? known : KIND_P2P;
    return recorder->hint != 0 ? recorder->hint & 0xff : KIND_COLLECTIVE;
}

void match_hosts(uint32_t *hosts, uint32_t own)
{
    host_of = hosts;
    own_host = own;
}

static bool is_part(uint64_t bits)
{
    uint32_t part = MATCH_CONTEXT(bits) & PART_BITS;
    return part == WITHIN_HOST_BITS || part == BETWEEN_HOSTS_BITS;
}

/* The ranks of `map` on this host, or the first on every host, in the order in which MPICH numbers them. */
static struct comm_map *part_of(const struct comm_map *map, uint64_t bits)
{
    bool within_host = (MATCH_CONTEXT(bits) & PART_BITS) == WITHIN_HOST_BITS;
    struct comm_map *part =
        host_of == NULL ? NULL : malloc(sizeof *part + (size_t)map->size * sizeof part->world[0]);
    if (part == NULL)
        return NULL;
    *part = (struct comm_map){.comm = map->comm};
    for (int i = 0; i < map->size; i++) {
        uint32_t host = map->world[i] == PEER_OUTSIDE ? 0 : host_of[map->world[i]];
        bool chosen = map->world[i] != PEER_OUTSIDE && (!within_host || host == own_host);
        for (int j = 0; !within_host && chosen && j < part->size; j++)
            chosen = host_of[part->world[j]] != host;
        if (chosen)
            part->world[part->size++] = map->world[i];
    }
    return part;
}

static void count_from(struct recorder *recorder, const struct comm_map *map, const struct message *message)
{
    uint32_t source = MATCH_SOURCE(message->bits);
    uint32_t peer = source < (uint32_t)map->size ? map->world[source] : PEER_OUTSIDE;
    /* What the program sends to its own rank, which does not always come here, is counted where it is sent. */
    if (peer != PEER_OUTSIDE && !(message->kind == KIND_P2P && profile_receives_own(peer)))
        record(recorder, RECEIVED, peer, message->kind, message->bytes);
}

static void count_unresolved(const struct message *message, uint64_t sign)
{
    __atomic_fetch_add(&match_unresolved.messages, sign, __ATOMIC_RELAXED);
    __atomic_fetch_add(&match_unresolved.bytes, sign * message->bytes, __ATOMIC_RELAXED);
}

void match_settle(struct recorder *recorder)
{
    int kept = 0;
    for (int i = 0; i < pending_count; i++) {
        const struct message *message = &pending[i];
        const struct comm_map *map = __atomic_load_n(&maps[MATCH_CONTEXT(message->bits) / 2], __ATOMIC_ACQUIRE);
        struct comm_map *part = NULL;
        /* The library's internal one, as for a window or a file, has the ranks of the call's communicator. */
        if (map == NULL && message->within && (map = comm_map_known(recorder, recorder->scope)) != NULL &&
            is_part(message->bits))
            map = part = part_of(map, message->bits);
        if (map != NULL) {
            count_unresolved(message, UINT64_MAX);
            count_from(recorder, map, message);
        } else {
            pending[kept++] = *message;
        }
        free(part);
    }
    pending_count = kept;
}

void match_count(struct recorder *recorder, uint64_t bits, uint64_t bytes)
{
    struct message message = {
        .bits = bits, .bytes = bytes, .kind = received_kind(recorder, bits), .within = recorder->scope != 0};
    if (message.kind == KIND_RMA_PROTOCOL)
        return;
    const struct comm_map *map = __atomic_load_n(&maps[MATCH_CONTEXT(bits) / 2], __ATOMIC_ACQUIRE);
    if (map != NULL) {
        count_from(recorder, map, &message);
        return;
    }
    count_unresolved(&message, 1);
    if (pending_count < MOST_PENDING)
        pending[pending_count++] = message;
}

void match_learn(const struct comm_map *map, const struct comm_map *own_side, uint64_t bits)
{
    uint32_t context = MATCH_CONTEXT(bits), parts[] = {WITHIN_HOST_BITS, BETWEEN_HOSTS_BITS};
    __atomic_store_n(&maps[context / 2], map, __ATOMIC_RELEASE);
    if (map->inter) {
        __atomic_store_n(&maps[(context | OWN_SIDE_BIT) / 2], own_side, __ATOMIC_RELEASE);
        return;
    }
    for (int i = 0; i < 2; i++)
        __atomic_store_n(&maps[(context | parts[i]) / 2], part_of(map, bits | (uint64_t)parts[i] << 48),
                         __ATOMIC_RELEASE);
}

void match_forget(const struct comm_map *map)
{
    for (uint32_t i = 0; i < CONTEXTS / 2; i++) {
        if (maps[i] != map)
            continue;
        __atomic_store_n(&maps[i], NULL, __ATOMIC_RELEASE);
        if (!map->inter && (2 * i & (PART_BITS | OWN_SIDE_BIT)) == 0) {
            free((void *)maps[i | WITHIN_HOST_BITS / 2]);
            free((void *)maps[i | BETWEEN_HOSTS_BITS / 2]);
            maps[i | WITHIN_HOST_BITS / 2] = maps[i | BETWEEN_HOSTS_BITS / 2] = NULL;
        }
        for (int slot = 0; slot < LEARNED; slot++)
            if ((learned[slot] >> 49) == i)
                __atomic_store_n(&learned[slot], 0, __ATOMIC_RELAXED);
    }
}

#endif
