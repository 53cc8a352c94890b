/* See record.h. */
#define _GNU_SOURCE
#include "record.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "live.h"

#define FIRST_ROWS 256
#define MAX_PHASE ((UINT64_C(1) << KEY_PHASE_BITS) - 1)
#define PHASE_MASK (MAX_PHASE << KEY_PHASE_SHIFT)
#define MAX_DOUBLINGS 40
#define LARGEST_CLASS 63

__thread struct recorder *own_recorder __attribute__((tls_model("initial-exec")));

static _Atomic(struct recorder *) first_recorder;
static pthread_key_t thread_end;
static bool have_thread_end;
static uint64_t start_ns, interval, memory_limit;

/* The coarse clock costs a few nanoseconds; it ticks every 1 to 4 ms, which is little beside a phase. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void *pages_take(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

void pages_give(void *at, size_t bytes)
{
    if (at != NULL)
        munmap(at, bytes);
}

static size_t table_bytes(uint64_t rows)
{
    return sizeof(struct table) + (size_t)rows * sizeof(struct row);
}

static struct table *table_make(uint64_t rows)
{
    uint64_t offset = LIVE_ELSEWHERE;
    struct table *table = live_take(table_bytes(rows), &offset);
    if (table == NULL) {
        offset = LIVE_ELSEWHERE;
        table = pages_take(table_bytes(rows));
    }
    if (table != NULL) {
        table->mask = rows - 1;
        table->offset = offset;
    }
    return table;
}

/* A thread that ended leaves its recorder to the next one: programs may start threads without end. */
static void thread_ended(void *recorder)
{
    own_recorder = NULL;
    __atomic_store_n(&((struct recorder *)recorder)->in_use, false, __ATOMIC_RELEASE);
}

void record_start(uint64_t interval_ns, uint64_t memory_bytes)
{
    interval = interval_ns;
    memory_limit = memory_bytes;
    start_ns = now_ns();
    have_thread_end = pthread_key_create(&thread_end, thread_ended) == 0;
}

uint64_t record_elapsed_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    /* The coarse clock is at most a tick behind. */
    return ns > start_ns ? ns - start_ns : 0;
}

static struct recorder *adopt(void)
{
    for (struct recorder *r = atomic_load(&first_recorder); r != NULL; r = r->next) {
        bool used = false;
        if (__atomic_compare_exchange_n(&r->in_use, &used, true, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return r;
    }
    return NULL;
}

struct recorder *recorder_make(void)
{
    struct recorder *recorder = adopt();
    if (recorder == NULL) {
        recorder = calloc(1, sizeof *recorder);
        if (recorder == NULL)
            return NULL;
        for (int d = 0; d < DIRECTIONS; d++)
            recorder->tables[d] = table_make(FIRST_ROWS);
        if (recorder->tables[SENT] == NULL || recorder->tables[RECEIVED] == NULL) {
            for (int d = 0; d < DIRECTIONS; d++)
                pages_give(recorder->tables[d], table_bytes(FIRST_ROWS));
            free(recorder);
            return NULL;
        }
        recorder->slot = live_slot();
        for (int d = 0; d < DIRECTIONS; d++)
            live_publish(recorder->slot, d, recorder->tables[d]->offset);
        recorder->in_use = true;
        recorder->next = atomic_load(&first_recorder);
        while (!atomic_compare_exchange_weak(&first_recorder, &recorder->next, recorder))
            ;
    }
    recorder->hint = recorder->calls = 0;
    own_recorder = recorder;
    if (have_thread_end)
        pthread_setspecific(thread_end, recorder);
    return recorder;
}

struct recorder *record_first(void)
{
    return atomic_load(&first_recorder);
}

static struct row *find(struct table *table, uint64_t key)
{
    /* Multiplying by a large odd number spreads neighbouring keys (Knuth, TAOCP 3, 6.4); the top bits are best. */
    uint64_t at = (key * UINT64_C(0x9E3779B97F4A7C15)) >> 20;
    for (;; at++) {
        struct row *row = &table->rows[at & table->mask];
        if (row->key == key || row->key == 0)
            return row;
    }
}

static void add(struct table *table, uint64_t key, uint64_t messages, uint64_t bytes)
{
    struct row *row = find(table, key);
    if (row->key == 0) {
        row->key = key;
        table->used++;
    }
    row->messages += messages;
    row->bytes += bytes;
}

static uint64_t halve_phase(uint64_t key)
{
    return (key & ~PHASE_MASK) | (((key & PHASE_MASK) >> 1) & PHASE_MASK);
}

/* The table with other keys or more room, or NULL. A retired one of the right size is used again. */
static struct table *rebuilt(struct recorder *recorder, enum direction direction, uint64_t rows, bool halve)
{
    const struct table *old = recorder->tables[direction];
    struct table *table = recorder->retired[direction];
    if (table != NULL && table->mask == rows - 1) {
        recorder->retired[direction] = NULL;
        table->used = 0;
        memset(table->rows, 0, (size_t)rows * sizeof(struct row));
    } else if ((table = table_make(rows)) == NULL) {
        return NULL;
    }
    for (uint64_t i = 0; i <= old->mask; i++) {
        const struct row *row = &old->rows[i];
        if (row->key != 0)
            add(table, halve ? halve_phase(row->key) : row->key, row->messages, row->bytes);
    }
    table->doublings = old->doublings + halve;
    return table;
}

/* The handler of a fatal signal may be reading the old table in another thread, so its memory is never given back.
 * Tables double, so all old ones together are no larger than the new one.
 */
static void replace(struct recorder *recorder, enum direction direction, struct table *table)
{
    recorder->retired[direction] = recorder->tables[direction];
    __atomic_store_n(&recorder->tables[direction], table, __ATOMIC_RELEASE);
    live_publish(recorder->slot, (int)direction, table->offset);
}

static void enter_phase(struct recorder *recorder, uint64_t now)
{
    uint64_t width = interval << recorder->doublings;
    uint64_t phase = interval == 0 ? 0 : (now - start_ns) / width;
    recorder->phase_key = KEY_USED | (phase << KEY_PHASE_SHIFT);
    recorder->phase_end_ns = interval == 0 ? UINT64_MAX : start_ns + (phase + 1) * width;
}

static bool join_phases(struct recorder *recorder, uint64_t now)
{
    struct table *joined[DIRECTIONS];
    for (int d = 0; d < DIRECTIONS; d++) {
        joined[d] = rebuilt(recorder, d, recorder->tables[d]->mask + 1, true);
        if (joined[d] == NULL) {
            if (d > 0)
                pages_give(joined[0], table_bytes(joined[0]->mask + 1));
            return false;
        }
    }
    for (int d = 0; d < DIRECTIONS; d++)
        replace(recorder, d, joined[d]);
    recorder->doublings++;
    enter_phase(recorder, now);
    return true;
}

static bool more_room(struct recorder *recorder, enum direction direction)
{
    struct table *table = recorder->tables[direction];
    uint64_t rows = table->mask + 1;
    bool phased = (recorder->phase_key & PHASE_MASK) != 0 && recorder->doublings < MAX_DOUBLINGS;
    if (phased && table_bytes(2 * rows) > memory_limit / DIRECTIONS) {
        if (!join_phases(recorder, now_ns()))
            return false;
        table = recorder->tables[direction];
        if (table->used < rows / 2)
            return true;
    }
    if ((table = rebuilt(recorder, direction, 2 * rows, false)) == NULL)
        return false;
    replace(recorder, direction, table);
    return true;
}

static __attribute__((noinline)) void change_phase(struct recorder *recorder, uint64_t now)
{
    enter_phase(recorder, now);
    while (recorder->doublings < MAX_DOUBLINGS && interval != 0 &&
           (now - start_ns) / (interval << recorder->doublings) > MAX_PHASE)
        if (!join_phases(recorder, now))
            break;
}

static int size_class(uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    int bits = 64 - __builtin_clzll(bytes);
    return bits > LARGEST_CLASS ? LARGEST_CLASS : bits;
}

static inline __attribute__((always_inline)) void count(struct recorder *recorder, uint64_t now,
                                                        enum direction direction, uint32_t peer, int kind,
                                                        uint64_t bytes)
{
    if (__builtin_expect(now >= recorder->phase_end_ns, 0))
        change_phase(recorder, now);
    uint64_t key = recorder->phase_key | ((uint64_t)(unsigned)kind << KEY_KIND_SHIFT) |
                   ((uint64_t)peer << KEY_PEER_SHIFT) | (uint64_t)size_class(bytes);
    struct table *table = recorder->tables[direction];
    struct row *row = find(table, key);
    if (__builtin_expect(row->key == 0, 0)) {
        /* Half full at most, so that a search ends soon. */
        if (2 * (table->used + 1) > table->mask && !more_room(recorder, direction)) {
            if (table->used + 2 > table->mask) {
                recorder->lost_messages++;
                recorder->lost_bytes += bytes;
                return;
            }
        }
        key = recorder->phase_key | (key & ~(KEY_USED | PHASE_MASK));
        add(recorder->tables[direction], key, 1, bytes);
        return;
    }
    row->messages++;
    row->bytes += bytes;
}

void record(struct recorder *recorder, enum direction direction, uint32_t peer, int kind, uint64_t bytes)
{
    count(recorder, now_ns(), direction, peer, kind, bytes);
}

void record_at(struct recorder *recorder, uint64_t now, enum direction direction, uint32_t peer, int kind,
               uint64_t bytes)
{
    count(recorder, now, direction, peer, kind, bytes);
}

uint64_t record_now(void)
{
    return now_ns();
}

unsigned record_doublings(void)
{
    unsigned most = 0;
    for (struct recorder *r = record_first(); r != NULL; r = r->next)
        if (r->doublings > most)
            most = r->doublings;
    return most;
}

static void sift(struct row *rows, size_t at, size_t end)
{
    struct row row = rows[at];
    for (size_t child; (child = 2 * at + 1) < end; at = child) {
        if (child + 1 < end && rows[child + 1].key > rows[child].key)
            child++;
        if (rows[child].key <= row.key)
            break;
        rows[at] = rows[child];
    }
    rows[at] = row;
}

/* Heap sort: in place and without the memory that qsort may ask for, which a signal handler must not. */
static void sort(struct row *rows, size_t count)
{
    for (size_t at = count / 2; at-- > 0;)
        sift(rows, at, count);
    for (size_t end = count; end > 1; end--) {
        struct row last = rows[end - 1];
        rows[end - 1] = rows[0];
        rows[0] = last;
        sift(rows, 0, end - 1);
    }
}

static size_t add_equal(struct row *rows, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && rows[kept - 1].key == rows[i].key) {
            rows[kept - 1].messages += rows[i].messages;
            rows[kept - 1].bytes += rows[i].bytes;
        } else {
            rows[kept++] = rows[i];
        }
    }
    return kept;
}

struct row *record_rows(enum direction direction, unsigned doublings, size_t *count, size_t *room)
{
    size_t most = 1;
    *count = 0;
    for (struct recorder *r = record_first(); r != NULL; r = r->next)
        most += r->tables[direction]->mask + 1;
    *room = most * sizeof(struct row);
    struct row *rows = pages_take(*room);
    if (rows == NULL)
        return NULL;
    for (struct recorder *r = record_first(); r != NULL; r = r->next) {
        const struct table *table = r->tables[direction];
        for (uint64_t i = 0; i <= table->mask && *count < most; i++) {
            struct row row = table->rows[i];
            if (row.key == 0 || row.messages == 0)
                continue;
            for (unsigned d = r->doublings; d < doublings; d++)
                row.key = halve_phase(row.key);
            rows[(*count)++] = row;
        }
    }
    sort(rows, *count);
    *count = add_equal(rows, *count);
    return rows;
}

void rows_free(struct row *rows, size_t room)
{
    pages_give(rows, room);
}
