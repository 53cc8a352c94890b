/* Which collectives were declared already, and the first call of a new one.
 *
 * Arrives: each call of a collective, on every rank of its communicator.
 * Leaves: a declaration by the communicator's first rank, and a wait of at most LIMIT_MS on the first call; nothing on
 * later ones but a comparison with what this thread called lately: no lock, no system call, no call of MPI.
 * Must not know: how Open MPI chooses an algorithm, how the agent is reached.
 *
 * A call's key is made of the ranks of the communicator and not of its handle, so that thousands of short-lived
 * communicators of the same ranks are one. No MPI message is sent here: ranks that disagree cannot hang.
 */
#define _GNU_SOURCE
#include "calls.h"

#include "agent.h"

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

#define LIMIT_MS 15
#define PATIENCE 3             /* waits in a row without an answer: from then on no more is waited */
#define SLOTS 4096             /* keys of this process; when three quarters are used, no more are declared */
#define DECLARED_AT_ONCE 32    /* declarations, then DECLARED_PER_S: programs may make any number of communicators */
#define DECLARED_PER_S 8
#define MOST_RANKS 4096        /* python/waystage/mpi_steps.py: those of a larger communicator are not placed */

/* Found when first needed: the library is loaded into launchers and shells too, which have no MPI. */
#define SYMBOL(name) static __typeof__(&P##name) name##_
SYMBOL(MPI_Comm_rank);
SYMBOL(MPI_Comm_size);
SYMBOL(MPI_Comm_group);
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
static bool ready;
static _Atomic uint64_t table[SLOTS];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int unanswered;
static double tokens = DECLARED_AT_ONCE, tokens_at;

/* Calls that this thread has made lately, of which nothing is left to do. A communicator that is freed leaves its
 * address to another: from then on, no entry of before holds. */
#define RECENT 64

struct recent {
    MPI_Comm comm;
    const char *primitive, *algorithm;
    int root;
    unsigned size_class, freed;
};

static __thread struct recent recent[RECENT];
static _Atomic unsigned freed;

#define CLASSES 32
/* For benchmarks: where WAYSTAGE_PATHS_STATS names a file, the cost of calls. */
static struct {
    const char *file;
    int rank;
    uint64_t first, first_ns, first_max_ns, later, later_ns, unanswered;
    uint64_t later_below[CLASSES]; /* calls of less than 2^i ns */
} stats;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

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

#define FIND(name) ((name##_ = (__typeof__(name##_))dlsym(RTLD_DEFAULT, "P" #name)) != NULL)

void calls_start(void)
{
    int rank, size;
    if (ready || getenv("WAYSTAGE_PATHS_APP") == NULL)
        return;
    if (!(FIND(MPI_Comm_rank) && FIND(MPI_Comm_size) && FIND(MPI_Comm_group) && FIND(MPI_Group_size) &&
          FIND(MPI_Group_free) && FIND(MPI_Group_translate_ranks) && FIND(MPI_Comm_create_keyval) &&
          FIND(MPI_Comm_get_attr) && FIND(MPI_Comm_set_attr)))
        return;
#ifdef OPEN_MPI
    world = (MPI_Comm)dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world");
    if (world == NULL)
        return;
#else
    world = MPI_COMM_WORLD;
#endif
    if (MPI_Comm_rank_(world, &rank) != MPI_SUCCESS || MPI_Comm_size_(world, &size) != MPI_SUCCESS)
        return;
    agent_report(rank, size);
    stats.file = getenv("WAYSTAGE_PATHS_STATS");
    stats.rank = rank;
    if (MPI_Comm_group_(world, &world_group) == MPI_SUCCESS &&
        MPI_Comm_create_keyval_(not_copied, members_gone, &keyval, NULL) == MPI_SUCCESS)
        ready = true;
}

static struct members *members_of(MPI_Comm comm)
{
    struct members *found = NULL;
    MPI_Group group;
    int flag = 0, count, mine;

    if (MPI_Comm_get_attr_(comm, keyval, &found, &flag) == MPI_SUCCESS && flag)
        return found;
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

static bool known(uint64_t key)
{
    for (uint64_t at = key % SLOTS;; at = (at + 1) % SLOTS) {
        uint64_t held = atomic_load_explicit(&table[at], memory_order_acquire);
        if (held == key)
            return true;
        if (held == 0)
            return false;
    }
}

/* Under the lock. */
static void remember(uint64_t key)
{
    uint64_t at = key % SLOTS;
    while (atomic_load_explicit(&table[at], memory_order_relaxed) != 0)
        at = (at + 1) % SLOTS;
    atomic_store_explicit(&table[at], key, memory_order_release);
    used++;
}

static bool may_declare(void)
{
    double now = (double)now_ns() / 1e9;
    tokens += (now - tokens_at) * DECLARED_PER_S;
    tokens_at = now;
    if (tokens > DECLARED_AT_ONCE)
        tokens = DECLARED_AT_ONCE;
    if (tokens < 1)
        return false;
    tokens -= 1;
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

static void first_call(const struct members *members, const struct call *call, uint64_t key)
{
    char line[64];

    pthread_mutex_lock(&lock);
    if (!known(key) && used < SLOTS / 4 * 3) {
        remember(key);
        if (may_declare() && agent_reached()) {
            if (members->mine == 0) {
                declare(members, call, key);
            } else {
                int length = snprintf(line, sizeof line, "{\"type\":\"mpi-wait\",\"key\":\"%016" PRIx64 "\"}", key);
                agent_send(line, length);
            }
            if (unanswered < PATIENCE) {
                bool placed = agent_placed(key, LIMIT_MS);
                unanswered = placed ? 0 : unanswered + 1;
                stats.unanswered += !placed;
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Declare the call where it is new; whether it was. */
static bool search(MPI_Comm comm, const struct call *call, unsigned size_class)
{
    struct members *members = members_of(comm);
    if (members == NULL || members->count < 2 || members->count > MOST_RANKS)
        return false;
    uint64_t key = mix(mix(mix(members->hash, text_hash(call->primitive)), text_hash(call->algorithm)),
                       (uint64_t)(uint32_t)call->root << 8 | size_class);
    key |= 1; /* 0 is an empty slot */
    if (known(key))
        return false;
    first_call(members, call, key);
    return true;
}

static void count_call(bool first, uint64_t took)
{
    if (first) {
        stats.first++;
        stats.first_ns += took;
        if (took > stats.first_max_ns)
            stats.first_max_ns = took;
    } else {
        unsigned class = took ? 64 - (unsigned)__builtin_clzll(took) : 0;
        stats.later++;
        stats.later_ns += took;
        stats.later_below[class < CLASSES ? class : CLASSES - 1]++;
    }
}

void call_begins(MPI_Comm comm, const struct call *call)
{
    if (!ready || call->algorithm == NULL)
        return;
    uint64_t began = stats.file != NULL ? now_ns() : 0;
    unsigned size_class = call->bytes ? 64 - (unsigned)__builtin_clzll(call->bytes) : 0;
    unsigned now = atomic_load_explicit(&freed, memory_order_acquire);
    /* Names are constants of this library: equal ones have one address. */
    struct recent wanted = {comm, call->primitive, call->algorithm, call->root, size_class, now};
    uintptr_t at = (uintptr_t)comm >> 4 ^ (uintptr_t)call->primitive ^ (uintptr_t)call->algorithm << 1 ^
                   (uintptr_t)(unsigned)call->root * 7 ^ (uintptr_t)size_class * 5;
    struct recent *slot = &recent[(at ^ at >> 6) % RECENT];
    bool first = false;
    if (slot->comm != wanted.comm || slot->primitive != wanted.primitive || slot->algorithm != wanted.algorithm ||
        slot->root != wanted.root || slot->size_class != wanted.size_class || slot->freed != wanted.freed) {
        first = search(comm, call, size_class);
        *slot = wanted;
    }
    if (stats.file != NULL)
        count_call(first, now_ns() - began);
}

__attribute__((destructor)) static void tell_stats(void)
{
    char name[4096];
    if (stats.file == NULL || snprintf(name, sizeof name, "%s.%d", stats.file, stats.rank) >= (int)sizeof name)
        return;
    FILE *file = fopen(name, "we");
    if (file == NULL)
        return;
    fprintf(file,
            "{\"first\": %" PRIu64 ", \"first_ns\": %" PRIu64 ", \"first_max_ns\": %" PRIu64 ", \"later\": %" PRIu64
            ", \"later_ns\": %" PRIu64 ", \"unanswered\": %" PRIu64 ", \"later_below\": [",
            stats.first, stats.first_ns, stats.first_max_ns, stats.later, stats.later_ns, stats.unanswered);
    for (int i = 0; i < CLASSES; i++)
        fprintf(file, "%s%" PRIu64, i ? ", " : "", stats.later_below[i]);
    fputs("]}\n", file);
    fclose(file);
}
