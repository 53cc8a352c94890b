/* See open_files.h. */
#define _GNU_SOURCE
#include "open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "path_record.h"

#define DESCRIPTORS 65536 /* The close of higher ones is not recorded. */
#define SHARED_TOKEN 1    /* Open twice or through a stream; real tokens are larger. */

/* By descriptor: the token of its open, and the number of forks before it. */
static _Atomic uint64_t tokens[DESCRIPTORS];
static _Atomic uint32_t forks_then[DESCRIPTORS];
static _Atomic uint32_t forks;
static _Atomic uint64_t next_token;

static uint64_t token_make(void)
{
    uint64_t token = atomic_fetch_add_explicit(&next_token, 1, memory_order_relaxed);
    if (token != 0)
        return token;
    /* Tokens must differ among processes: 32 random bits, 32 counted. */
    uint32_t chance = 0;
    if (syscall(SYS_getrandom, &chance, sizeof chance, 1 /* GRND_NONBLOCK */) != sizeof chance) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        chance = (uint32_t)now.tv_nsec ^ (uint32_t)getpid() << 12;
    }
    token = ((uint64_t)(chance | 1) << 32) + 2;
    atomic_store(&next_token, token + 1);
    return token;
}

static void remember(int fd, uint64_t token)
{
    if (fd < DESCRIPTORS) {
        atomic_store_explicit(&forks_then[fd], atomic_load_explicit(&forks, memory_order_relaxed), memory_order_relaxed);
        atomic_store_explicit(&tokens[fd], token, memory_order_relaxed);
    }
}

uint64_t open_file_record(int directory, const char *path, enum access how)
{
    if (segment == NULL || how == ACCESS_READ)
        return 0;
    uint64_t token = 0;
    if (ring_stats() && how == ACCESS_WRITE_ONLY) {
        int error = errno;
        token = token_make();
        errno = error;
    }
    record_path(RING_OPENED, directory, path, token);
    return token;
}

void open_file_add(int fd, uint64_t token)
{
    if (ring_stats() && fd >= 0)
        remember(fd, token);
}

static int64_t nanoseconds(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void tell(int fd, uint64_t token)
{
    struct stat found;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode))
        return;
    struct ring_claim claim;
    if (!ring_begin(&claim))
        return;
    *(struct ring_stat *)(claim.record + 1) = (struct ring_stat){
        .device = found.st_dev,
        .inode = found.st_ino,
        .size = (uint64_t)found.st_size,
        .blocks = (uint64_t)found.st_blocks,
        .mtime = nanoseconds(found.st_mtim),
        .ctime = nanoseconds(found.st_ctim),
        .atime = nanoseconds(found.st_atim),
        .mode = found.st_mode,
        .uid = found.st_uid,
        .gid = found.st_gid,
        .links = (uint32_t)found.st_nlink,
    };
    ring_end(&claim, RING_CLOSED, token, 0, sizeof(struct ring_stat));
}

void open_file_closing(int fd, bool tells)
{
    if (segment == NULL || fd < 0)
        return;
    directory_cache_drop(fd);
    if (!ring_stats() || fd >= DESCRIPTORS || atomic_load_explicit(&tokens[fd], memory_order_relaxed) == 0)
        return;
    int error = errno;
    uint64_t token = atomic_exchange_explicit(&tokens[fd], 0, memory_order_relaxed);
    bool alone = atomic_load_explicit(&forks_then[fd], memory_order_relaxed)
                 == atomic_load_explicit(&forks, memory_order_relaxed);
    if (tells && alone && token > SHARED_TOKEN)
        tell(fd, token);
    errno = error;
}

void open_files_closing(unsigned first, unsigned last)
{
    if (segment == NULL)
        return;
    directory_cache_drop_range(first, last);
    if (!ring_stats())
        return;
    unsigned end = last < DESCRIPTORS ? last + 1 : DESCRIPTORS;
    for (unsigned fd = first; fd < end; fd++)
        atomic_store_explicit(&tokens[fd], 0, memory_order_relaxed);
}

void open_file_shared(int fd)
{
    if (ring_stats() && fd >= 0 && fd < DESCRIPTORS && atomic_load_explicit(&tokens[fd], memory_order_relaxed) != 0)
        atomic_store_explicit(&tokens[fd], SHARED_TOKEN, memory_order_relaxed);
}

void open_file_duplicated(int fd, int copy)
{
    if (!ring_stats() || copy < 0 || fd == copy)
        return;
    open_file_shared(fd);
    remember(copy, 0);
}

void open_files_before_fork(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

void open_files_after_fork(void)
{
    atomic_store(&next_token, 0);
}
