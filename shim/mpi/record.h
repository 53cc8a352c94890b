/* The counters: what arrives is (peer, kind, bytes), what leaves is sorted rows.
 * Knows nothing of MPI, files or signals.
 *
 * Each thread counts into its own recorder, so that counting needs no lock and no atomic operation.
 */
#ifndef WAYSTAGE_RECORD_H
#define WAYSTAGE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A row's key, highest bits first: 1, phase, kind, peer, class of sizes. In this order rows are sorted, and equal
 * neighbours make the columns of the file small. No key is 0, which marks an empty row.
 */
#define KEY_SIZE_BITS 6
#define KEY_PEER_BITS 26
#define KEY_KIND_BITS 8
#define KEY_PHASE_BITS 20
#define KEY_PEER_SHIFT KEY_SIZE_BITS
#define KEY_KIND_SHIFT (KEY_PEER_SHIFT + KEY_PEER_BITS)
#define KEY_PHASE_SHIFT (KEY_KIND_SHIFT + KEY_KIND_BITS)
#define KEY_USED (UINT64_C(1) << 63)

struct row {
    uint64_t key;
    uint64_t messages;
    uint64_t bytes;
};

/* patterns/live.py reads it from the file of a rank that was killed. */
struct table {
    uint64_t mask; /* rows less one; a power of two of them */
    uint64_t used;
    uint64_t doublings; /* of the phases in its keys */
    uint64_t offset;    /* in the file of live.h, or LIVE_ELSEWHERE */
    struct row rows[];
};

enum direction { SENT, RECEIVED, DIRECTIONS };

/* What the MPI side remembers for a thread beside its counters. */
#define COMM_SLOTS 16
#define CALLER_SLOTS 32

struct comm_slot {
    uintptr_t comm;
    const void *map;
};

struct caller_slot {
    uintptr_t address;
    int kind;
};

/* A non-blocking collective that has sent nothing yet. */
#define BEGUN_SLOTS 8

struct begun_slot {
    uintptr_t comm;
    int kind;
};

struct recorder {
    struct table *tables[DIRECTIONS];
    struct table *retired[DIRECTIONS];
    uint64_t phase_key;    /* the phase of now, in its place in a key, with KEY_USED */
    uint64_t phase_end_ns; /* when to look again */
    uint64_t activity;     /* messages sent and receives posted, of any kind */
    uint32_t slot;         /* of live.h */
    unsigned doublings;    /* a phase lasts interval << doublings */
    uint64_t lost_messages, lost_bytes; /* for want of memory */
    uint64_t outside_messages, outside_bytes;
    uint64_t comm_generation;
    struct comm_slot comms[COMM_SLOTS];
    struct caller_slot callers[CALLER_SLOTS];
    struct begun_slot begun[BEGUN_SLOTS]; /* the newest first */
    bool learned;                         /* a tag's kind, since this was last cleared */
    uintptr_t scope; /* the communicator of the call that this thread is in, or 0 */
    int hint;  /* the kind of the call that this thread is in, or 0 */
    int calls; /* > 0: within a call that was counted already */
    bool in_use;
    struct recorder *next;
};

extern __thread struct recorder *own_recorder __attribute__((tls_model("initial-exec")));

/* A phase lasts interval_ns, or for ever where that is 0; a recorder holds at most memory_bytes before it joins
 * phases. */
void record_start(uint64_t interval_ns, uint64_t memory_bytes);

/* The calling thread's recorder, made when first asked for, or NULL where there is no memory. */
struct recorder *recorder_make(void);

static inline struct recorder *recorder_get(void)
{
    struct recorder *recorder = own_recorder;
    return __builtin_expect(recorder != NULL, 1) ? recorder : recorder_make();
}

void record(struct recorder *recorder, enum direction direction, uint32_t peer, int kind, uint64_t bytes);

/* The same for many that are counted together: the clock is a third of what counting costs. */
uint64_t record_now(void);
void record_at(struct recorder *recorder, uint64_t now, enum direction direction, uint32_t peer, int kind,
               uint64_t bytes);

/* Nanoseconds since record_start. */
uint64_t record_elapsed_ns(void);

/* All threads' rows of one direction, sorted, equal ones added up, phases in units of interval << *doublings.
 * Safe within a signal handler. Returns NULL where there is no memory; *count is 0 then. Give back with rows_free.
 */
struct row *record_rows(enum direction direction, unsigned doublings, size_t *count, size_t *room);
void rows_free(struct row *rows, size_t room);

/* Over all threads. */
unsigned record_doublings(void);
struct recorder *record_first(void);

/* Memory straight from the system, so that it can be had within a signal handler. NULL where there is none. */
void *pages_take(size_t bytes);
void pages_give(void *at, size_t bytes);

#endif
