/* See live.h. */
#define _GNU_SOURCE
#include "live.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096 /* offsets of mmap are multiples of the page size; a larger one makes only that call fail */

_Static_assert(sizeof(struct live_header) == 8192 + 16 * LIVE_SLOTS, "patterns/live.py counts on it");

static struct live_header *header;
static char file_path[PATH_MAX];
static bool made;
static int file = -1;
static _Atomic uint64_t file_end;
static _Atomic uint32_t slots;

static void *map(uint64_t offset, size_t bytes)
{
    /* Not every file system can reserve room; one that writes zeros instead (posix_fallocate) may lack it later. */
    if (fallocate(file, 0, (off_t)offset, (off_t)bytes) != 0)
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset);
    return at == MAP_FAILED ? NULL : at;
}

enum claim live_make(const char *path)
{
    if (snprintf(file_path, sizeof file_path, "%s", path) >= (int)sizeof file_path)
        return CLAIM_FAILED;
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0)
        return errno == EEXIST ? CLAIM_TAKEN : CLAIM_FAILED;
    made = true;
    header = map(0, sizeof *header);
    atomic_store(&file_end, sizeof *header);
    return CLAIM_MADE;
}

void live_describe(uint32_t rank, unsigned flags, const char *node, const unsigned char *head, size_t head_bytes)
{
    if (header == NULL || head_bytes > LIVE_HEAD)
        return;
    memcpy(header->head, head, head_bytes);
    snprintf(header->node, sizeof header->node, "%s", node);
    header->rank = rank;
    header->flags = flags;
    header->head_bytes = (uint32_t)head_bytes;
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, LIVE_MAGIC, sizeof header->magic);
}

void live_finish(unsigned flags, uint64_t duration_ns)
{
    if (header == NULL)
        return;
    header->duration_ns = duration_ns;
    atomic_thread_fence(memory_order_release);
    header->flags = flags;
}

void live_remove(void)
{
    if (made)
        unlink(file_path);
    made = false;
}

void live_forget(void)
{
    live_remove();
    if (header != NULL)
        munmap(header, sizeof *header);
    if (file >= 0)
        close(file);
    header = NULL;
    file = -1;
}

void *live_take(size_t bytes, uint64_t *offset)
{
    if (header == NULL)
        return NULL;
    uint64_t room = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    *offset = atomic_fetch_add(&file_end, room);
    return map(*offset, bytes);
}

uint32_t live_slot(void)
{
    uint32_t slot = atomic_fetch_add(&slots, 1);
    if (header != NULL)
        header->slots = slot + 1;
    return slot;
}

void live_publish(uint32_t slot, int direction, uint64_t offset)
{
    if (header != NULL && slot < LIVE_SLOTS)
        __atomic_store_n(&header->tables[slot][direction], offset, __ATOMIC_RELEASE);
}
