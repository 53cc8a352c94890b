/* See touch.h. */
#define _GNU_SOURCE
#include "touch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT 16

/* The path of one directory. `sequence` is odd while it is written (a sequence lock: readers copy, then look again). */
struct kept {
    _Atomic uint32_t sequence;
    _Atomic int32_t directory; /* The descriptor; AT_FDCWD; or NOBODY. */
    _Atomic uint32_t bytes;
    char path[PATH_MAX];
};

#define NOBODY INT32_MIN

static struct kept working = {.directory = NOBODY};
static struct kept others[KEPT] = {[0 ... KEPT - 1] = {.directory = NOBODY}};

static _Atomic bool elsewhere;

void touch_elsewhere(void)
{
    atomic_store(&elsewhere, true);
}

static struct kept *place_of(int directory)
{
    return directory == AT_FDCWD ? &working : &others[(unsigned)directory % KEPT];
}

void touch_forget(int directory)
{
    struct kept *kept = place_of(directory);
    int32_t held = directory;
    if (atomic_load_explicit(&kept->directory, memory_order_relaxed) == held)
        atomic_compare_exchange_strong(&kept->directory, &held, NOBODY);
}

void touch_forget_range(unsigned first, unsigned last)
{
    for (int place = 0; place < KEPT; place++) {
        int32_t held = atomic_load_explicit(&others[place].directory, memory_order_relaxed);
        if (held >= 0 && (unsigned)held >= first && (unsigned)held <= last)
            touch_forget(held);
    }
}

void touch_forked(void)
{
    for (int place = -1; place < KEPT; place++) {
        struct kept *kept = place < 0 ? &working : &others[place];
        if ((atomic_load(&kept->sequence) & 1) != 0) {
            atomic_store(&kept->directory, NOBODY);
            atomic_fetch_add(&kept->sequence, 1);
        }
    }
}

/* Copy the kept path to `to`, of PATH_MAX bytes; its length, or 0 where it is not kept. */
static size_t kept_copy(struct kept *kept, int directory, char *to)
{
    uint32_t before = atomic_load_explicit(&kept->sequence, memory_order_acquire);
    if ((before & 1) != 0 || atomic_load_explicit(&kept->directory, memory_order_acquire) != directory)
        return 0;
    uint32_t bytes = atomic_load_explicit(&kept->bytes, memory_order_relaxed);
    if (bytes > PATH_MAX)
        return 0;
    memcpy(to, kept->path, bytes);
    atomic_thread_fence(memory_order_acquire);
    bool same = atomic_load_explicit(&kept->sequence, memory_order_relaxed) == before
                && atomic_load_explicit(&kept->directory, memory_order_relaxed) == directory;
    return same ? bytes : 0;
}

static void kept_fill(struct kept *kept, int directory, const char *path, size_t bytes)
{
    uint32_t before = atomic_load_explicit(&kept->sequence, memory_order_relaxed);
    if ((before & 1) != 0 || !atomic_compare_exchange_strong(&kept->sequence, &before, before + 1))
        return; /* Another is writing: it is asked for again next time. */
    memcpy(kept->path, path, bytes);
    atomic_store_explicit(&kept->bytes, (uint32_t)bytes, memory_order_relaxed);
    atomic_store_explicit(&kept->directory, directory, memory_order_relaxed);
    atomic_store_explicit(&kept->sequence, before + 2, memory_order_release);
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

/* Ask the kernel, into `to` of PATH_MAX bytes; 0 where it cannot tell an absolute path. Where there is no such descriptor,
 * `*closed` says so: the call will fail. */
static size_t ask(int directory, char *to, bool *closed)
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
    struct kept *kept = place_of(directory);
    size_t bytes = kept_copy(kept, directory, to);
    if (bytes == 0 && (bytes = ask(directory, to, closed)) != 0)
        kept_fill(kept, directory, to, bytes);
    return bytes;
}

/* Whether a path may be read: what cannot be an address of this process is left to the call, which fails for it. */
static bool is_path(const char *path)
{
#ifdef __x86_64__
    return (uintptr_t)path >= 4096 && (uintptr_t)path >> 47 == 0;
#else
    return (uintptr_t)path >= 4096 && (uintptr_t)path >> 56 == 0;
#endif
}

void touch_at(enum ring_kind kind, int directory, const char *path, uint64_t token)
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

void touch_descriptor(enum ring_kind kind, int fd)
{
    if (segment == NULL || fd < 0)
        return;
    int error = errno;
    struct ring_claim claim;
    if (ring_begin(&claim)) {
        /* Not kept: a file is rarely asked for twice. Pipes and sockets have no path, and are nobody's loss. */
        bool closed;
        size_t bytes = ask(fd, (char *)(claim.record + 1), &closed);
        ring_end(&claim, kind, 0, bytes, 0);
    }
    errno = error;
}

void touch_either(enum ring_kind kind, int fd, const char *path)
{
    if (path == NULL || (is_path(path) && path[0] == '\0'))
        touch_descriptor(kind, fd);
    else
        touch_at(kind, fd, path, 0);
}
