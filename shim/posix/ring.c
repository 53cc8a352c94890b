/* See ring.h. Nothing here allocates or takes a lock that another thread can hold: it is safe in a signal handler. */
#define _GNU_SOURCE
#include "ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_BOUND_NS 10000000 /* The longest that one call waits for room. */
#define WAIT_STEP_NS 50000
#define TRIED_RINGS 16
#define PATIENCE_BYTES (UINT64_C(1) << 20) /* The agent must read this much before a call waits for it again. */

/* crates/agent/src/abi.rs relies on these. */
_Static_assert(sizeof(struct ring_header) == 3 * 64 + 4 * RING_PROCESSES, "header");
_Static_assert(offsetof(struct ring_header, consumed) == 64 && offsetof(struct ring_header, lost) == 128, "header");
_Static_assert(sizeof(struct ring_control) == 192 && sizeof(struct ring_record) == 16 && sizeof(struct ring_stat) == 72, "records");

struct ring_header *segment;

static struct ring_control *rings;
static char *ring_data;
/* Copies: other processes can write to the segment. */
static uint32_t ring_count;
static uint64_t ring_bytes;
static _Atomic uint64_t impatient_until;

static __thread uint32_t own_ring __attribute__((tls_model("initial-exec"))); /* From 1; 0 for none yet. */
static __thread uint32_t own_thread __attribute__((tls_model("initial-exec")));

void ring_enroll(uint32_t process)
{
    for (uint32_t step = 0; step < RING_PROCESSES; step++) {
        _Atomic uint32_t *place = &segment->processes[(process + step) % RING_PROCESSES];
        uint32_t empty = 0, held = atomic_load_explicit(place, memory_order_relaxed);
        if (held == process)
            return;
        if (held == 0 && atomic_compare_exchange_strong(place, &empty, process))
            return;
    }
}

static bool fits(const struct ring_header *header, uint64_t size)
{
    if (header->magic != RING_MAGIC || header->version != RING_VERSION)
        return false;
    uint64_t count = header->rings, bytes = header->ring_bytes;
    if (count == 0 || count > 65536 || bytes < 4 * RING_LONGEST || bytes > (UINT64_C(1) << 32) || (bytes & (bytes - 1)) != 0)
        return false;
    return size == sizeof *header + count * sizeof(struct ring_control) + count * bytes;
}

void ring_attach(void)
{
    const char *path = getenv(RING_VARIABLE);
    if (path == NULL || segment != NULL)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    struct stat found;
    void *at = MAP_FAILED;
    uint64_t size = 0;
    if (fstat(fd, &found) == 0 && (size = (uint64_t)found.st_size) >= sizeof(struct ring_header))
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at == MAP_FAILED)
        return;
    struct ring_header *header = at;
    if (!fits(header, size)) {
        munmap(at, size);
        return;
    }
    ring_count = header->rings;
    ring_bytes = header->ring_bytes;
    rings = (struct ring_control *)(header + 1);
    ring_data = (char *)(rings + ring_count);
    segment = header;
    ring_enroll((uint32_t)getpid());
}

void ring_forked(void)
{
    own_thread = 0;
    own_ring = 0;
    if (segment != NULL)
        ring_enroll((uint32_t)getpid());
}

/* Lock ring `index` where it is free and has room; *full is set where it is free and has none. */
static bool claim_ring(uint32_t index, struct ring_claim *claim, bool *full)
{
    struct ring_control *ring = &rings[index];
    uint64_t unlocked = 0;
    if (atomic_load_explicit(&ring->lock, memory_order_relaxed) != 0
        || !atomic_compare_exchange_strong_explicit(&ring->lock, &unlocked, own_thread, memory_order_acquire, memory_order_relaxed))
        return false;
    /* Another process may have written any number: only multiples of the alignment keep records within the ring. */
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed) & ~(uint64_t)(RING_ALIGN - 1);
    uint64_t used = head - atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint64_t at = head & (ring_bytes - 1);
    uint64_t skipped = ring_bytes - at < RING_LONGEST ? ring_bytes - at : 0;
    if (used > ring_bytes || ring_bytes - used < skipped + RING_LONGEST) {
        atomic_store_explicit(&ring->lock, 0, memory_order_release);
        *full = true;
        return false;
    }
    char *data = ring_data + (uint64_t)index * ring_bytes;
    if (skipped != 0) {
        struct ring_record *skip = (struct ring_record *)(data + at);
        *skip = (struct ring_record){.bytes = (uint32_t)skipped, .kind = RING_SKIP};
        at = 0;
    }
    claim->ring = ring;
    claim->head = head + skipped;
    claim->record = (struct ring_record *)(data + at);
    return true;
}

static bool claim_any(struct ring_claim *claim, bool *full)
{
    uint32_t first = own_ring - 1;
    uint32_t tried = ring_count < TRIED_RINGS ? ring_count : TRIED_RINGS;
    for (uint32_t number = 0; number < tried; number++) {
        if (claim_ring((first + number) % ring_count, claim, full)) {
            /* Stay with this ring: the next record finds room there too. */
            own_ring = (first + number) % ring_count + 1;
            return true;
        }
    }
    return false;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static bool claim_waiting(struct ring_claim *claim)
{
    uint64_t consumed = atomic_load_explicit(&segment->consumed, memory_order_relaxed);
    if (consumed < atomic_load_explicit(&impatient_until, memory_order_relaxed))
        return false;
    uint64_t deadline = now_ns() + WAIT_BOUND_NS;
    bool full = false;
    do {
        const struct timespec step = {.tv_nsec = WAIT_STEP_NS};
        nanosleep(&step, NULL);
        if (claim_any(claim, &full))
            return true;
    } while (now_ns() < deadline);
    consumed = atomic_load_explicit(&segment->consumed, memory_order_relaxed);
    atomic_store_explicit(&impatient_until, consumed + PATIENCE_BYTES, memory_order_relaxed);
    return false;
}

bool ring_begin(struct ring_claim *claim)
{
    if (__builtin_expect(own_thread == 0, 0))
        own_thread = (uint32_t)syscall(SYS_gettid);
    if (__builtin_expect(own_ring == 0, 0))
        own_ring = atomic_fetch_add_explicit(&segment->next_ring, 1, memory_order_relaxed) % ring_count + 1;
    bool full = false;
    if (claim_any(claim, &full) || claim_waiting(claim))
        return true;
    atomic_fetch_add_explicit(&segment->lost, 1, memory_order_relaxed);
    return false;
}

void ring_end(const struct ring_claim *claim, enum ring_kind kind, uint64_t token, size_t path_bytes, size_t body_bytes)
{
    size_t bytes = sizeof(struct ring_record) + path_bytes + body_bytes;
    bytes = (bytes + RING_ALIGN - 1) & ~(size_t)(RING_ALIGN - 1);
    if (path_bytes + body_bytes != 0) {
        *claim->record = (struct ring_record){
            .bytes = (uint32_t)bytes, .path_bytes = (uint16_t)path_bytes, .kind = (uint8_t)kind, .token = token};
        atomic_store_explicit(&claim->ring->head, claim->head + bytes, memory_order_release);
    }
    atomic_store_explicit(&claim->ring->lock, 0, memory_order_release);
}

uint64_t ring_now(void)
{
    return segment != NULL ? now_ns() : 0;
}

void ring_unplaced(void)
{
    atomic_fetch_add_explicit(&segment->unplaced, 1, memory_order_relaxed);
}
