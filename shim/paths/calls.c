/* Which collectives were declared already, and the first call of a new one.
 *
 * Arrives: each call of a collective, on every rank of its communicator.
 * Leaves: a declaration by the communicator's first rank, and a wait of at most LIMIT_MS on the first call; what each
 * rank sent in it; nothing on later ones but a comparison with what this thread called lately: no lock, no system call,
 * no call of MPI. Where the algorithm is not known, the first call is learned, and the second one waits.
 * Must not know: how Open MPI chooses an algorithm, how messages are seen, how the agent is reached.
 *
 * A call's key is made of the ranks of the communicator and not of its handle, so that thousands of short-lived
 * communicators of the same ranks are one. No MPI message is sent here: ranks that disagree cannot hang.
 */
#define _GNU_SOURCE
#include "calls.h"

#include "agent.h"
#include "sent.h"
#include "stats.h"
#include "symbols.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIMIT_MS 13            /* a rank that must wait for a processor then comes back within 20 */
#define PATIENCE 3             /* waits in a row without an answer: from then on no more is waited */
#define SLOTS 4096             /* keys of this process; when three quarters are used, no more are declared */
#define DECLARED_AT_ONCE 32    /* declarations, then DECLARED_PER_S: programs may make any number of communicators */
#define DECLARED_PER_S 8

/* Found when first needed: the library is loaded into launchers and shells too, which have no MPI. */
#define SYMBOL(name) static __typeof__(&P##name) name##_
SYMBOL(MPI_Comm_rank);
SYMBOL(MPI_Comm_size);
SYMBOL(MPI_Comm_group);
SYMBOL(MPI_Comm_test_inter);
SYMBOL(MPI_Group_size);
SYMBOL(MPI_Group_free);
SYMBOL(MPI_Group_translate_ranks);
SYMBOL(MPI_Comm_create_keyval);
SYMBOL(MPI_Comm_get_attr);
SYMBOL(MPI_Comm_set_attr);

struct members {
    uint64_t hash;
    int count, mine;
    int ranks[];
};

static MPI_Comm world;
static MPI_Group world_group;
static int keyval;
static bool ready, learns;
static _Atomic uint64_t table[SLOTS];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The low bits of a key in the table: what is left to do. A key that is not there is new. */
#define STATE_BITS UINT64_C(3)
enum state {
    NEW,
    DONE,   /* nothing */
    LEARNED, /* its ranks told whom they send to: the next call waits for paths */
    UNCLEAR, /* the first call's messages were not all known: one more is tried */
};

const char call_observed[] = "observed";

static int unanswered, unanswered_orders;
static struct allowance {
    double tokens, at;
} declarations = {.tokens = DECLARED_AT_ONCE}, orders = {.tokens = DECLARED_AT_ONCE};

/* Calls that this thread has made lately, of which nothing is left to do. A communicator that is freed leaves its
 * address to another: from then on, no entry of before holds. */
#define RECENT 64

struct recent {
    MPI_Comm comm;
    const char *primitive, *algorithm;
    int root;
    unsigned size_class, freed;
} __attribute__((aligned(64))); /* a line of the cache: a program that has waited finds none of them there */

static __thread struct recent recent[RECENT];

/* The collective that the program is in. Those on other communicators within it are parts of it. */
static __thread struct {
    bool running, decided, first;
    MPI_Comm comm;
    struct call call;
    uint64_t spent_ns;
} __attribute__((aligned(64))) outer;

static _Atomic unsigned freed;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    /* splitmix64's finaliser (Steele et al. 2014) over FNV-like chaining. */
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u;
    return hash ^ hash >> 31;
}

static uint64_t text_hash(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static int members_gone(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)extra;
    free(value);
    atomic_fetch_add_explicit(&freed, 1, memory_order_release);
    return MPI_SUCCESS;
}

/* Open MPI's MPI_COMM_NULL_COPY_FN: a duplicate finds its members anew. */
static int not_copied(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *flag = 0;
    return MPI_SUCCESS;
}

#define FIND(name) ((name##_ = (__typeof__(name##_))symbol_next("P" #name)) != NULL)

void calls_start(void)
{
    int rank, size;
    if (ready || getenv("WAYSTAGE_PATHS_APP") == NULL)
        return;
    if (!(FIND(MPI_Comm_rank) && FIND(MPI_Comm_size) && FIND(MPI_Comm_group) && FIND(MPI_Group_size) &&
          FIND(MPI_Comm_test_inter) && FIND(MPI_Group_free) && FIND(MPI_Group_translate_ranks) && FIND(MPI_Comm_create_keyval) &&
          FIND(MPI_Comm_get_attr) && FIND(MPI_Comm_set_attr)))
        return;
#ifdef OPEN_MPI
    world = (MPI_Comm)dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world");
    if (world == NULL)
        world = (MPI_Comm)symbol_next("ompi_mpi_comm_world");
    if (world == NULL)
        return;
#else
    world = MPI_COMM_WORLD;
#endif
    if (MPI_Comm_rank_(world, &rank) != MPI_SUCCESS || MPI_Comm_size_(world, &size) != MPI_SUCCESS)
        return;
    agent_report(rank, size);
    stats_start(rank);
    if (MPI_Comm_group_(world, &world_group) == MPI_SUCCESS &&
        MPI_Comm_create_keyval_(not_copied, members_gone, &keyval, NULL) == MPI_SUCCESS)
        ready = true;
    learns = ready && sent_start();
}

static struct members *members_of(MPI_Comm comm)
{
    struct members *found = NULL;
    MPI_Group group;
    int flag = 0, inter = 0, count, mine;

    if (MPI_Comm_get_attr_(comm, keyval, &found, &flag) == MPI_SUCCESS && flag)
        return found;
    if (MPI_Comm_test_inter_(comm, &inter) != MPI_SUCCESS || inter)
        return NULL;
    if (MPI_Comm_group_(comm, &group) != MPI_SUCCESS)
        return NULL;
    if (MPI_Group_size_(group, &count) == MPI_SUCCESS && MPI_Comm_rank_(comm, &mine) == MPI_SUCCESS && count > 0)
        found = malloc(sizeof *found + 2 * (size_t)count * sizeof(int));
    if (found != NULL) {
        int *own = found->ranks + count;
        for (int i = 0; i < count; i++)
            own[i] = i;
        found->count = count;
        found->mine = mine;
        found->hash = (uint64_t)count;
        if (MPI_Group_translate_ranks_(group, count, own, world_group, found->ranks) != MPI_SUCCESS ||
            MPI_Comm_set_attr_(comm, keyval, found) != MPI_SUCCESS) {
            free(found);
            found = NULL;
        } else {
            for (int i = 0; i < count; i++)
                found->hash = mix(found->hash, (uint64_t)(uint32_t)found->ranks[i]);
        }
    }
    MPI_Group_free_(&group);
    return found;
}

/* The place of a key, or the free one where it would be. */
static uint64_t place_of(uint64_t key)
{
    for (uint64_t at = key % SLOTS;; at = (at + 1) % SLOTS) {
        uint64_t held = atomic_load_explicit(&table[at], memory_order_acquire);
        if (held == 0 || (held & ~STATE_BITS) == key)
            return at;
    }
}

static enum state state_of(uint64_t key)
{
    return (enum state)(atomic_load_explicit(&table[place_of(key)], memory_order_acquire) & STATE_BITS);
}

/* Under the lock. False where there is no room for another key. */
static bool set_state(uint64_t key, enum state state)
{
    uint64_t at = place_of(key);
    if (atomic_load_explicit(&table[at], memory_order_relaxed) == 0) {
        if (used >= SLOTS / 4 * 3)
            return false;
        used++;
    }
    atomic_store_explicit(&table[at], key | (uint64_t)state, memory_order_release);
    return true;
}

static bool may_declare(struct allowance *left)
{
    double now = (double)stats_now_ns() / 1e9;
    left->tokens += (now - left->at) * DECLARED_PER_S;
    left->at = now;
    if (left->tokens > DECLARED_AT_ONCE)
        left->tokens = DECLARED_AT_ONCE;
    if (left->tokens < 1)
        return false;
    left->tokens -= 1;
    return true;
}

static void declare(const struct members *members, const struct call *call, uint64_t key)
{
    size_t room = 512 + 12 * (size_t)members->count;
    char *line = malloc(room);
    if (line == NULL)
        return;
    int length = snprintf(line, room,
                          "{\"type\":\"mpi-collective\",\"key\":\"%016" PRIx64 "\",\"primitive\":\"%s\","
                          "\"algorithm\":\"%s\",\"bytes\":%zu,\"root\":%d,\"ranks\":[",
                          key, call->primitive, call->algorithm, call->bytes, call->root);
    for (int i = 0; i < members->count; i++)
        length += snprintf(line + length, room - (size_t)length, "%s%d", i ? "," : "", members->ranks[i]);
    length += snprintf(line + length, room - (size_t)length, "]}");
    agent_send(line, length);
    free(line);
}

static void send_wait(uint64_t key)
{
    char line[64];
    int length = snprintf(line, sizeof line, "{\"type\":\"mpi-wait\",\"key\":\"%016" PRIx64 "\"}", key);
    agent_send(line, length);
}

static void wait_for(uint64_t key)
{
    if (unanswered < PATIENCE) {
        bool placed = agent_placed(key, LIMIT_MS);
        unanswered = placed ? 0 : unanswered + 1;
        stats_unanswered(!placed);
    }
}

/* Whether it was declared. */
static bool first_call(const struct members *members, const struct call *call, uint64_t key)
{
    bool declared = false;
    pthread_mutex_lock(&lock);
    if (state_of(key) == NEW && set_state(key, DONE) && may_declare(&declarations) && agent_reached()) {
        declared = true;
        if (members->mine == 0)
            declare(members, call, key);
        else
            send_wait(key);
        wait_for(key);
    }
    pthread_mutex_unlock(&lock);
    return declared;
}

/* The second call of one that was learned. */
static void wait_for_learned(uint64_t key)
{
    pthread_mutex_lock(&lock);
    set_state(key, DONE);
    if (agent_reached()) {
        send_wait(key);
        wait_for(key);
    }
    pthread_mutex_unlock(&lock);
}

static bool report(const struct noting *noting)
{
    char key[17];
    snprintf(key, sizeof key, "%016" PRIx64, noting->key);
    const struct members *members = noting->members;
    return sent_end(&noting->call, key, members->ranks, members->count, members->mine);
}

/* The first call of one that is learned has ended. */
static void learned(const struct noting *noting)
{
    pthread_mutex_lock(&lock);
    enum state before = state_of(noting->key), after = before == UNCLEAR ? DONE : UNCLEAR;
    if (outer.decided) {
        sent_drop();
        after = DONE;
    } else if (!may_declare(&declarations) || !agent_reached()) {
        sent_drop();
        after = DONE;
    } else if (report(noting)) {
        if (noting->members->mine == 0)
            declare(noting->members, &noting->call, noting->key);
        after = LEARNED;
    }
    set_state(noting->key, after);
    pthread_mutex_unlock(&lock);
}

static uint64_t key_of(const struct members *members, const struct call *call, unsigned size_class)
{
    uint64_t key = mix(mix(mix(members->hash, text_hash(call->primitive)), text_hash(call->algorithm)),
                       (uint64_t)(uint32_t)call->root << 8 | size_class);
    return (key & ~STATE_BITS) == 0 ? STATE_BITS + 1 : key & ~STATE_BITS; /* 0 is an empty slot */
}

/* The members of a communicator whose collectives are declared, or NULL. */
static struct members *declared_members(MPI_Comm comm)
{
    struct members *members = members_of(comm);
    return members == NULL || members->count < 2 || members->count > CALLS_MOST_RANKS ? NULL : members;
}

bool call_order(MPI_Comm comm, const char *primitive, size_t bytes, int limit_ms, int *ranks)
{
    const struct members *members = ready ? declared_members(comm) : NULL;
    struct call call = {primitive, "rank-order", bytes, -1};
    bool found = false;
    if (members == NULL)
        return false;
    pthread_mutex_lock(&lock);
    if (unanswered_orders < PATIENCE && may_declare(&orders) && agent_reached()) {
        uint64_t key = key_of(members, &call, 0);
        declare(members, &call, key);
        bool answered = agent_order(key, limit_ms, ranks, members->count, &found);
        unanswered_orders = answered ? 0 : unanswered_orders + 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void call_aside(bool aside)
{
    outer.running = aside;
    outer.comm = (MPI_Comm)0; /* no call has it: call_begins */
}

static unsigned size_class_of(const struct call *call)
{
    return call->bytes ? 64 - (unsigned)__builtin_clzll(call->bytes) : 0;
}

/* Whether nothing is left to do for this call; else the place to say so. */
static inline bool is_recent(MPI_Comm comm, const struct call *call, struct recent **slot, struct recent *wanted)
{
    unsigned size_class = size_class_of(call);
    /* Names are constants of this library: equal ones have one address. */
    *wanted = (struct recent){comm,       call->primitive, call->algorithm,
                              call->root, size_class,      atomic_load_explicit(&freed, memory_order_acquire)};
    uintptr_t at = (uintptr_t)comm >> 4 ^ (uintptr_t)call->primitive ^ (uintptr_t)call->algorithm << 1 ^
                   (uintptr_t)(unsigned)call->root * 7 ^ (uintptr_t)size_class * 5;
    *slot = &recent[(at ^ at >> 6) % RECENT];
    return (*slot)->comm == wanted->comm && (*slot)->primitive == wanted->primitive &&
           (*slot)->algorithm == wanted->algorithm && (*slot)->root == wanted->root &&
           (*slot)->size_class == wanted->size_class && (*slot)->freed == wanted->freed;
}

static void begins(MPI_Comm comm, const struct call *call, struct noting *noting)
{
    struct recent *slot, wanted;
    if (is_recent(comm, call, &slot, &wanted))
        return;
    struct members *members = declared_members(comm);
    if (members != NULL) {
        uint64_t key = key_of(members, call, wanted.size_class);
        outer.first = state_of(key) == NEW;
        if (outer.first && first_call(members, call, key) && learns && sent_begin())
            *noting = (struct noting){.call = *call, .members = members, .key = key};
    }
    *slot = wanted;
}

static void enters(MPI_Comm comm, const struct call *call, struct noting *noting)
{
    struct recent *slot, wanted;
    if (is_recent(comm, call, &slot, &wanted))
        return;
    struct members *members = declared_members(comm);
    uint64_t key = members != NULL ? key_of(members, call, wanted.size_class) : 0;
    enum state state = members != NULL ? state_of(key) : DONE;
    if (state == NEW || state == UNCLEAR) {
        if (sent_begin()) {
            noting->call = *call;
            noting->members = members;
            noting->key = key;
        }
        return;
    }
    if (state == LEARNED) {
        outer.first = true;
        wait_for_learned(key);
    }
    *slot = wanted;
}

/* What a call costs is the sum of its parts. */
static void spend(uint64_t began)
{
    if (!stats_wanted())
        return;
    outer.spent_ns += stats_now_ns() - began;
    if (outer.running)
        return;
    stats_call(outer.first, outer.spent_ns);
    outer.spent_ns = 0;
    outer.first = false;
}

void call_enters(MPI_Comm comm, const struct call *call, struct noting *noting)
{
    noting->members = NULL;
    noting->outermost = learns && !outer.running;
    if (!noting->outermost)
        return;
    uint64_t began = stats_begin();
    outer.running = true;
    outer.decided = outer.first = false;
    outer.spent_ns = 0;
    outer.comm = comm;
    outer.call = *call;
    enters(comm, call, noting);
    spend(began);
}

void call_leaves(struct noting *noting)
{
    if (!noting->outermost)
        return;
    uint64_t began = stats_begin();
    outer.running = false;
    if (noting->members != NULL) {
        struct recent *slot, wanted;
        outer.first = true;
        learned(noting);
        /* So that the second call does not search. */
        if (state_of(noting->key) == DONE && !is_recent(outer.comm, &noting->call, &slot, &wanted))
            *slot = wanted;
    }
    spend(began);
}

void call_begins(MPI_Comm comm, const struct call *call, struct noting *noting)
{
    noting->members = NULL;
    /* A part of a collective on another communicator, as coll/han makes them: the whole is learned. */
    if (!ready || call->algorithm == NULL || (outer.running && outer.comm != comm))
        return;
    uint64_t began = stats_begin();
    /* Others on the same communicator agree on new ones, in a first call of coll/han. */
    outer.decided |= outer.call.primitive != NULL && strcmp(outer.call.primitive, call->primitive) == 0 &&
                     outer.call.bytes == call->bytes && outer.call.root == call->root;
    begins(comm, call, noting);
    spend(began);
}

void call_ends(struct noting *noting)
{
    if (noting->members == NULL)
        return;
    uint64_t began = stats_begin();
    pthread_mutex_lock(&lock);
    report(noting);
    pthread_mutex_unlock(&lock);
    if (outer.running && stats_wanted())
        outer.spent_ns += stats_now_ns() - began;
}
