/* See path_record.h. */
#define _GNU_SOURCE
#include "path_record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHED_DIRECTORIES 16

/* The path of one directory. `sequence` is odd during a write (a sequence lock: readers copy, then check it again). */
struct cached_directory {
    _Atomic uint32_t sequence;
    _Atomic int32_t directory; /* The descriptor; AT_FDCWD; or EMPTY_SLOT. */
    _Atomic uint32_t bytes;
    char path[PATH_MAX];
};

#define EMPTY_SLOT INT32_MIN

static struct cached_directory working = {.directory = EMPTY_SLOT};
static struct cached_directory others[CACHED_DIRECTORIES] = {[0 ... CACHED_DIRECTORIES - 1] = {.directory = EMPTY_SLOT}};

static _Atomic bool elsewhere;

void record_root_changed(void)
{
    atomic_store(&elsewhere, true);
}

static struct cached_directory *cache_slot(int directory)
{
    return directory == AT_FDCWD ? &working : &others[(unsigned)directory % CACHED_DIRECTORIES];
}

void directory_cache_drop(int directory)
{
    struct cached_directory *cached = cache_slot(directory);
    int32_t held = directory;
    if (atomic_load_explicit(&cached->directory, memory_order_relaxed) == held)
        atomic_compare_exchange_strong(&cached->directory, &held, EMPTY_SLOT);
}

void directory_cache_drop_range(unsigned first, unsigned last)
{
    for (int place = 0; place < CACHED_DIRECTORIES; place++) {
        int32_t held = atomic_load_explicit(&others[place].directory, memory_order_relaxed);
        if (held >= 0 && (unsigned)held >= first && (unsigned)held <= last)
            directory_cache_drop(held);
    }
}

void directory_cache_forked(void)
{
    for (int place = -1; place < CACHED_DIRECTORIES; place++) {
        struct cached_directory *cached = place < 0 ? &working : &others[place];
        if ((atomic_load(&cached->sequence) & 1) != 0) {
            atomic_store(&cached->directory, EMPTY_SLOT);
            atomic_fetch_add(&cached->sequence, 1);
        }
    }
}

/* Copy a cached path to `to`, of PATH_MAX bytes; its length, or 0 where it is not cached. */
static size_t cache_read(struct cached_directory *cached, int directory, char *to)
{
    uint32_t before = atomic_load_explicit(&cached->sequence, memory_order_acquire);
    if ((before & 1) != 0 || atomic_load_explicit(&cached->directory, memory_order_acquire) != directory)
        return 0;
    uint32_t bytes = atomic_load_explicit(&cached->bytes, memory_order_relaxed);
    if (bytes > PATH_MAX)
        return 0;
    memcpy(to, cached->path, bytes);
    atomic_thread_fence(memory_order_acquire);
    bool same = atomic_load_explicit(&cached->sequence, memory_order_relaxed) == before
                && atomic_load_explicit(&cached->directory, memory_order_relaxed) == directory;
    return same ? bytes : 0;
}

static void cache_fill(struct cached_directory *cached, int directory, const char *path, size_t bytes)
{
    uint32_t before = atomic_load_explicit(&cached->sequence, memory_order_relaxed);
    if ((before & 1) != 0 || !atomic_compare_exchange_strong(&cached->sequence, &before, before + 1))
        return; /* Another thread writes it: the next call fills it. */
    memcpy(cached->path, path, bytes);
    atomic_store_explicit(&cached->bytes, (uint32_t)bytes, memory_order_relaxed);
    atomic_store_explicit(&cached->directory, directory, memory_order_relaxed);
    atomic_store_explicit(&cached->sequence, before + 2, memory_order_release);
}

/* "/proc/self/fd/N", without snprintf, which is not for signal handlers. */
static void descriptor_link(int fd, char *to)
{
    char digits[12];
    int count = 0;
    do
        digits[count++] = (char)('0' + fd % 10);
    while ((fd /= 10) != 0);
    memcpy(to, "/proc/self/fd/", 14);
    to += 14;
    while (count > 0)
        *to++ = digits[--count];
    *to = '\0';
}

/* The kernel's path of a descriptor, in `to` of PATH_MAX bytes; 0 where there is no absolute path. *closed is set
 * where the descriptor is not open: the call will fail. */
static size_t kernel_path(int directory, char *to, bool *closed)
{
    long bytes;
    if (directory == AT_FDCWD) {
        bytes = syscall(SYS_getcwd, to, PATH_MAX) - 1; /* It counts the NUL. */
    } else {
        char link[32];
        descriptor_link(directory, link);
        bytes = syscall(SYS_readlinkat, AT_FDCWD, link, to, PATH_MAX);
        *closed = bytes < 0 && errno == ENOENT;
        if (bytes == PATH_MAX)
            return 0;
    }
    return bytes > 0 && to[0] == '/' ? (size_t)bytes : 0;
}

static size_t directory_path(int directory, char *to, bool *closed)
{
    *closed = directory < 0 && directory != AT_FDCWD;
    if (*closed)
        return 0;
    struct cached_directory *cached = cache_slot(directory);
    size_t bytes = cache_read(cached, directory, to);
    if (bytes == 0 && (bytes = kernel_path(directory, to, closed)) != 0)
        cache_fill(cached, directory, to, bytes);
    return bytes;
}

/* Whether a path can be read. The call itself fails for what cannot be an address of this process. */
static bool is_path(const char *path)
{
#ifdef __x86_64__
    return (uintptr_t)path >= 4096 && (uintptr_t)path >> 47 == 0;
#else
    return (uintptr_t)path >= 4096 && (uintptr_t)path >> 56 == 0;
#endif
}

void record_path(enum ring_kind kind, int directory, const char *path, uint64_t token)
{
    if (segment == NULL || !is_path(path))
        return;
    size_t bytes = strnlen(path, PATH_MAX);
    if (bytes == 0 || bytes == PATH_MAX)
        return; /* The call fails, or is about a descriptor. */
    if (atomic_load_explicit(&elsewhere, memory_order_relaxed)) {
        ring_unplaced();
        return;
    }
    int error = errno;
    struct ring_claim claim;
    if (ring_begin(&claim)) {
        char *to = (char *)(claim.record + 1);
        size_t before = 0;
        bool closed = false;
        if (path[0] != '/') {
            before = directory_path(directory, to, &closed);
            if (before != 0)
                to[before++] = '/';
            else if (!closed)
                ring_unplaced();
        }
        bool placed = path[0] == '/' || before != 0;
        if (placed)
            memcpy(to + before, path, bytes);
        ring_end(&claim, kind, token, placed ? before + bytes : 0, 0);
    }
    errno = error;
}

void record_descriptor(enum ring_kind kind, int fd)
{
    if (segment == NULL || fd < 0)
        return;
    int error = errno;
    struct ring_claim claim;
    if (ring_begin(&claim)) {
        /* Not cached: a file is rarely recorded twice. Pipes and sockets have no path and need no record. */
        bool closed;
        size_t bytes = kernel_path(fd, (char *)(claim.record + 1), &closed);
        ring_end(&claim, kind, 0, bytes, 0);
    }
    errno = error;
}

void record_path_or_descriptor(enum ring_kind kind, int fd, const char *path)
{
    if (path == NULL || (is_path(path) && path[0] == '\0'))
        record_descriptor(kind, fd);
    else
        record_path(kind, fd, path, 0);
}
