/* See announced.h. A hash with chains over a fixed pool, whose least recently used entry makes room. */
#define _GNU_SOURCE
#include "announced.h"

#include <sched.h>

/* Entries are numbered from 1; 0 is none. */
struct entry {
    uint64_t number;
    uint32_t peer, whose;
    struct meaning meaning;
    uint16_t next;         /* of its chain */
    uint16_t older, newer; /* of all, by last use */
};

static struct entry pool[KEPT + 1]; /* pool[0].newer is the oldest, pool[0].older the newest */
static uint16_t chains[KEPT];
static uint16_t used;
static unsigned char held;

static void hold(void)
{
    while (__atomic_test_and_set(&held, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void release(void)
{
    __atomic_clear(&held, __ATOMIC_RELEASE);
}

static uint16_t *chain_of(uint64_t number, uint32_t peer, uint32_t whose)
{
    uint64_t mixed = (number ^ (number >> 15) ^ ((uint64_t)peer << 7) ^ whose) * UINT64_C(0x9e3779b97f4a7c15);
    return &chains[mixed >> 50];
}

static uint16_t find(uint64_t number, uint32_t peer, uint32_t whose)
{
    uint16_t at = *chain_of(number, peer, whose);
    while (at != 0 && (pool[at].number != number || pool[at].peer != peer || pool[at].whose != whose))
        at = pool[at].next;
    return at;
}

static void take_out(uint16_t at)
{
    pool[pool[at].older].newer = pool[at].newer;
    pool[pool[at].newer].older = pool[at].older;
}

static void make_newest(uint16_t at)
{
    pool[at].newer = 0;
    pool[at].older = pool[0].older;
    pool[pool[0].older].newer = at;
    pool[0].older = at;
}

/* An entry in no chain and no order. */
static uint16_t room(void)
{
    if (used < KEPT)
        return ++used;
    uint16_t at = pool[0].newer;
    uint16_t *link = chain_of(pool[at].number, pool[at].peer, pool[at].whose);
    while (*link != at)
        link = &pool[*link].next;
    *link = pool[at].next;
    take_out(at);
    return at;
}

void announced_keep(uint64_t number, uint32_t peer, enum whose whose, struct meaning meaning)
{
    hold();
    uint16_t at = find(number, peer, whose);
    if (at != 0) {
        take_out(at);
    } else {
        at = room();
        uint16_t *chain = chain_of(number, peer, whose);
        pool[at] = (struct entry){.number = number, .peer = peer, .whose = whose, .next = *chain};
        *chain = at;
    }
    pool[at].meaning = meaning;
    make_newest(at);
    release();
}

struct meaning announced_recall(uint64_t number, uint32_t peer, enum whose whose)
{
    struct meaning found = {0};
    hold();
    uint16_t at = find(number, peer, whose);
    if (at != 0) {
        found = pool[at].meaning;
        take_out(at);
        make_newest(at);
    }
    release();
    return found;
}
